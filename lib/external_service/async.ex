defmodule ExternalService.Async do
  # Calls in tasks of their own. Options are checked by the caller, before there is a task that could only crash.
  @moduledoc false

  alias ExternalService.{Call, Options, RetryOptions, Validation}

  @async_options [:max_concurrency, :ordered, :timeout, :on_timeout, :zip_input_on_exit]
  @own_options Keyword.keys(Options.schema(:call))
  @call_options @own_options ++ Keyword.keys(Options.schema(:retry))

  @type overrides :: RetryOptions.t() | keyword() | nil

  @doc "Makes one call in a task."
  @spec call(term(), overrides(), (() -> term())) :: Task.t()
  def call(service, retry, fun) do
    check!(retry)
    Task.async(attach(fn -> Call.run(:return, service, retry, fun) end))
  end

  @doc "Makes a call in a task for each element, as `Task.async_stream/3` does."
  @spec stream(Enumerable.t(), term(), overrides(), keyword(), (term() -> term())) :: Enumerable.t()
  def stream(enumerable, service, retry, async, fun) do
    check!(retry)
    refuse_unknown!(async, @async_options)
    one = attach(fn element -> Call.run(:return, service, retry, fn -> fun.(element) end) end)
    Task.async_stream(enumerable, one, async)
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

  # The one place where the function of a task is made to run under the deadline of the process that starts the task.
  defp attach(fun), do: fun

  defp check!(nil), do: :ok
  defp check!(%RetryOptions{} = retry), do: RetryOptions.new(retry)

  defp check!(options) when is_list(options) do
    unless Keyword.keyword?(options), do: refuse!("expected a keyword list of options, got: #{inspect(options)}")
    {own, retry} = Keyword.split(options, @own_options)
    Validation.check_given!(:call, own)
    Validation.check_given!(:retry, retry)
  end

  defp refuse_unknown!(options, known) do
    unless Keyword.keyword?(options), do: refuse!("expected a keyword list of options, got: #{inspect(options)}")

    case Enum.reject(Keyword.keys(options), &(&1 in known)) do
      [] -> :ok
      unknown -> refuse!("unknown options #{inspect(Enum.uniq(unknown))}, valid options are: #{inspect(known)}")
    end
  end

  defp refuse_mix!(async, retry) do
    refuse!(
      "#{inspect(async)} are options of the stream and #{inspect(retry)} options of its calls. Give them apart: " <>
        "call_async_stream(enumerable, service, #{inspect(retry)}, #{inspect(async)}, fun)"
    )
  end

  @spec refuse!(String.t()) :: no_return()
  defp refuse!(message), do: raise(ArgumentError, "call_async_stream: " <> message)
end
