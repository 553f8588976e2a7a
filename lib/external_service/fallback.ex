defmodule ExternalService.Fallback do
  # What a call gives instead of an error: the outermost layer, so that it covers refusals, timeouts, deadlines, retries
  # that were in vain and the exceptions that are raised after them alike.
  @moduledoc false

  alias ExternalService.{Retry, Telemetry}

  @typedoc "What a `fallback:` option may be."
  @type t ::
          (Exception.t() -> term())
          | (Exception.t(), context() -> term())
          | atom()
          | {:value, term()}
          | [{matcher(), t()}]

  @type matcher :: :any | module() | (Exception.t() -> as_boolean(term()))
  @type context :: %{service: term(), attempts: non_neg_integer(), arguments: [term()]}

  @doc "Raises if a function that the fallback names is not there. `module` is the one that uses the library, if any."
  @spec check!(t() | nil, module() | nil) :: :ok
  def check!(nil, _module), do: :ok
  def check!(list, module) when is_list(list), do: Enum.each(list, fn {_matcher, each} -> check!(each, module) end)

  def check!(name, module) when is_atom(name) do
    unless module && (function_exported?(module, name, 1) or function_exported?(module, name, 2)) do
      raise ArgumentError,
            "the fallback #{inspect(name)} names no public function of one or two arguments of the module that uses " <>
              "ExternalService (#{inspect(module)}). Outside of such a module give a function, or {:value, term}"
    end

    :ok
  end

  def check!(_fallback, _module), do: :ok

  @doc "Returns the outcome of a call, or of its fallback where the call failed and there is one for that."
  @spec cover(outcome, t(), module() | nil, context()) :: outcome | {:fallback, term()} when outcome: tuple()
  def cover({:ok, _value} = success, _fallback, _module, _context), do: success

  def cover(failure, fallback, module, context) do
    error = elem(failure, 1)

    case choose(fallback, error, context.service) do
      nil ->
        failure

      chosen ->
        Telemetry.fallback(context.service, error)
        {:fallback, run(chosen, module, error, context)}
    end
  end

  defp choose(list, error, service) when is_list(list) do
    Enum.find_value(list, fn {matcher, fallback} ->
      if matches?(matcher, error, service), do: choose(fallback, error, service)
    end)
  end

  defp choose(fallback, _error, _service), do: fallback

  defp matches?(:any, _error, _service), do: true
  defp matches?(module, error, _service) when is_atom(module), do: is_struct(error, module)
  defp matches?(predicate, error, service), do: Retry.holds?(predicate, error, :fallback, service)

  defp run({:value, value}, _module, _error, _context), do: value
  defp run(fun, _module, error, _context) when is_function(fun, 1), do: fun.(error)
  defp run(fun, _module, error, context) when is_function(fun, 2), do: fun.(error, context)

  defp run(name, module, error, context) do
    if function_exported?(module, name, 2),
      do: apply(module, name, [error, context]),
      else: apply(module, name, [error])
  end
end
