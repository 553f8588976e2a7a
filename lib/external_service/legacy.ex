defmodule ExternalService.Legacy do
  # How version 1 spelled its options, and how the same is spelled today. It works on quoted code, so that the error that
  # refuses an old option and the task that looks for old options in files say the same.
  @moduledoc false

  @breaker [:fuse, :fuse_strategy, :fuse_refresh]
  @old @breaker ++ [:rate_limit, :backoff, :randomize, :rescue_only]

  # Stands for what can not be read off the code.
  @failures {:failures, [], nil}
  @ms {:ms, [], nil}

  @typedoc "Options of version 1 by their keys, and what stands for them today."
  @type fragment :: {[atom()], keyword(Macro.t())}

  @doc "Returns the options of version 1 among these quoted options."
  @spec fragments(keyword(Macro.t())) :: [fragment()]
  def fragments(options) do
    others = for {key, value} <- options, today = today(key, value), do: {[key], today}
    breaker(Keyword.take(options, @breaker)) ++ others
  end

  @doc "Returns today's spelling of the options of version 1 among these, as text to paste; `nil` if there are none."
  @spec spelled(keyword()) :: String.t() | nil
  def spelled(options) do
    case fragments(for {key, value} <- options, key in @old, do: {key, quoted(value)}) do
      [] -> nil
      fragments -> fragments |> Enum.flat_map(&elem(&1, 1)) |> text()
    end
  end

  @doc "Returns quoted options as they stand in a call."
  @spec text(keyword(Macro.t())) :: String.t()
  def text(options), do: options |> line() |> String.slice(1..-2//1)

  @doc "Returns quoted code as text on one line."
  @spec line(Macro.t()) :: String.t()
  def line(ast), do: ast |> Code.quoted_to_algebra() |> Inspect.Algebra.format(:infinity) |> IO.iodata_to_binary()

  defp breaker([]), do: []

  defp breaker(old) do
    breaker = Enum.flat_map(old, &breaker_option/1)
    today = name(old[:fuse]) ++ if(breaker == [], do: [], else: [circuit_breaker: breaker])
    [{Keyword.keys(old), today}]
  end

  defp name([_ | _] = fuse), do: Keyword.take(fuse, [:name])
  defp name(_none), do: []

  defp breaker_option({:fuse, [_ | _] = options}), do: Enum.flat_map(options, &breaker_option/1)
  defp breaker_option({:fuse, _unknown}), do: strategy(nil) ++ [reset: @ms]
  defp breaker_option({key, strategy}) when key in [:fuse_strategy, :strategy], do: strategy(strategy)
  defp breaker_option({key, ms}) when key in [:fuse_refresh, :refresh], do: [reset: ms]
  defp breaker_option({_name, _value}), do: []

  defp strategy({:{}, _meta, [:standard, max, within]}), do: [tolerate: max, within: within]

  defp strategy({:{}, _meta, [:fault_injection, rate, max, within]}),
    do: [tolerate: max, within: within, fault_injection: rate]

  defp strategy(_unknown), do: [tolerate: @failures, within: @ms]

  # Calls of version 1 waited for the rate limit as long as it took.
  defp today(:rate_limit, {limit, per}), do: [rate_limit: [limit: limit, per: per, wait: :infinity]]
  defp today(:backoff, {:exponential, base}), do: [backoff: :exponential, base: base]
  # What version 1 called a factor was added to the delay, in milliseconds.
  defp today(:backoff, {:{}, _meta, [:linear, base, factor]}), do: [backoff: :linear, base: base, increment: factor]
  defp today(:randomize, value), do: [jitter: value]
  defp today(:rescue_only, exceptions), do: [retry_exceptions: exceptions]
  defp today(_key, _value), do: nil

  # Not every value can be written down.
  defp quoted(value) do
    Macro.escape(value)
  rescue
    ArgumentError -> {:value, [], nil}
  end
end
