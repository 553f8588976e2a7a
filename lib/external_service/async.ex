defmodule ExternalService.Async do
  # Calls in tasks of their own. Options are checked by the caller, before there is a task that could only crash.
  @moduledoc false

  alias ExternalService.{Call, Deadline, Options, RetryOptions}

  @async_options [:max_concurrency, :ordered, :timeout, :on_timeout, :zip_input_on_exit]
  @call_options Keyword.keys(Options.schema(:call)) ++ Keyword.keys(Options.schema(:retry))

  @type overrides :: RetryOptions.t() | keyword() | nil

  @doc "Makes one call in a task."
  @spec call(term(), overrides(), (() -> term())) :: Task.t()
  def call(service, retry, fun) do
    check!(service, retry)
    deadline = Deadline.current()
    Task.async(fn -> call_under(deadline, service, retry, fun) end)
  end

  @doc "Makes a call in a task for each element, as `Task.async_stream/3` does."
  @spec stream(Enumerable.t(), term(), overrides(), keyword(), (term() -> term())) :: Enumerable.t()
  def stream(enumerable, service, retry, async, fun) do
    check!(service, retry)
    refuse_unknown!(async, @async_options)
    deadline = Deadline.current()

    Task.async_stream(
      enumerable,
      fn element -> call_under(deadline, service, retry, fn -> fun.(element) end) end,
      async
    )
  end

  @doc "Tells options of the calls from options of the stream."
  @spec split!(RetryOptions.t() | keyword()) :: {overrides(), keyword()}
  def split!(%RetryOptions{} = retry), do: {retry, []}

  def split!(options) when is_list(options) do
    refuse_unknown!(options, @async_options ++ @call_options)

    # A key that is both, :timeout, is the stream's: there it has always been.
    case Keyword.split(options, @async_options) do
      {async, []} -> {nil, async}
      {[], retry} -> {retry, []}
      {async, retry} -> refuse_mix!(async, retry)
    end
  end

  # The deadline is that of the process that asked for the task. Tasks stay on its node, so it goes along as it is and not
  # as what is left of it: an element that waits for its turn in a stream has less left when it comes.
  defp call_under(deadline, service, retry, fun),
    do: Deadline.under(deadline, fn -> Call.run(:return, service, retry, fun) end)

  defp check!(service, options) do
    if is_list(options) and not Keyword.keyword?(options),
      do: refuse!("expected a keyword list of options, got: #{inspect(options)}")

    Call.check!(service, options)
  end

  defp refuse_unknown!(options, known) do
    unless Keyword.keyword?(options), do: refuse!("expected a keyword list of options, got: #{inspect(options)}")

    case Enum.reject(Keyword.keys(options), &(&1 in known)) do
      [] -> :ok
      unknown -> refuse!("unknown options #{inspect(Enum.uniq(unknown))}, valid options are: #{inspect(known)}")
    end
  end

  @spec refuse_mix!([atom()], [atom()]) :: no_return()
  defp refuse_mix!(async, retry) do
    refuse!(
      "#{inspect(async)} are options of the stream and #{inspect(retry)} options of its calls. Give them apart: " <>
        "call_async_stream(enumerable, service, #{inspect(retry)}, #{inspect(async)}, fun)"
    )
  end

  @spec refuse!(String.t()) :: no_return()
  defp refuse!(message), do: raise(ArgumentError, "call_async_stream: " <> message)
end
