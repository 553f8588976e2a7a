defmodule ExternalService.Explanation.BreakerSection do
  # When the breaker opens and what happens then.
  @moduledoc false

  import ExternalService.Explanation.Figures

  alias ExternalService.CircuitBreaker.Settings
  alias ExternalService.{Configuration, Explanation.Sections}

  @spec rows(Configuration.t(), [atom()]) :: [Sections.row()]
  def rows(%Configuration{breaker: breaker} = figures, found) do
    if Settings.any?(breaker),
      do: opening(figures, found) ++ rates(breaker) ++ in_a_row(breaker) ++ open(breaker) ++ rest(breaker),
      else: [{"opens after", "never — `tolerate: :infinity` installs no breaker"}]
  end

  defp opening(%{breaker: breaker} = figures, found) do
    case breaker[:tolerate] do
      :infinity -> []
      _number -> [{"opens after", too_many(figures)}, {"counting window", counting_window(figures, found)}]
    end
  end

  defp too_many(%{breaker: breaker, attempts: attempts, calls: calls}) do
    failures = breaker[:tolerate] + 1
    failing = count(failures, "failing attempt")

    cond do
      breaker[:melt] == :per_call -> count(failures, "failing call")
      attempts == 1 -> failing
      calls == 1 -> "#{failing} — possibly the first call, part-way through its own retry loop"
      true -> "#{failing} — as few as #{count(calls, "call")} at #{attempts} attempts each"
    end
  end

  defp counting_window(%{breaker: breaker, narrowest: narrowest, calls: calls}, found) do
    see = if :narrow_window in found, do: "; see below", else: ""

    cond do
      not is_integer(narrowest) or breaker[:within] >= narrowest -> duration(breaker[:within])
      calls == 1 -> "#{duration(breaker[:within])} — narrower than one call's retry window#{see}"
      true -> "#{duration(breaker[:within])} — narrower than #{calls} failing calls take#{see}"
    end
  end

  defp rates(breaker) do
    for {share, what} <- [{breaker[:failure_rate], "fail"}, {Settings.slow_rate(breaker), slow(breaker[:slow_call])}],
        share != nil,
        do: {"opens when", "#{percent(share)} of at least #{calls_in(breaker[:window], breaker[:min_calls])} #{what}"}
  end

  defp slow(nil), do: nil
  defp slow(ms), do: "take #{duration(ms)} or longer"

  defp calls_in({:time, ms}, min), do: "#{count(min, "call")} in #{duration(ms)}"
  defp calls_in({:calls, n}, min), do: "#{min} of the last #{count(n, "call")}"

  defp in_a_row(breaker) do
    what = if breaker[:melt] == :per_call, do: "failing call", else: "failing attempt"
    if n = breaker[:consecutive], do: [{"opens after", "#{count(n, what)} without a success between"}], else: []
  end

  defp open(breaker) do
    [{"resets after", reset(breaker[:reset]) <> spread(breaker[:reset_jitter])}] ++
      growing(breaker[:reset_backoff]) ++ half_open(Settings.half_open(breaker))
  end

  defp reset(0), do: "no time"
  defp reset(ms), do: duration(ms)

  defp spread(share) when share in [nil, 0, 0.0], do: ""
  defp spread(share), do: ", +/- #{percent(share)}"

  defp growing(nil), do: []

  defp growing(options),
    do: [{"grows", "#{options[:factor]} times with each failed probe, up to #{duration(options[:max])}"}]

  defp half_open(nil), do: []

  defp half_open(%{probes: probes, successes: successes, lease: lease}) do
    replaced = if lease == :infinity, do: "", else: ", a probe is replaced after #{duration(lease)}"
    [{"half-open", "#{count(probes, "probe")} at a time, closes after #{good(successes)}#{replaced}"}]
  end

  defp good(1), do: "1 success"
  defp good(n), do: "#{n} successes"

  defp rest(breaker) do
    ramp_up = if ms = breaker[:ramp_up], do: [{"ramp-up", "from a tenth of the calls to all in #{duration(ms)}"}]

    faults =
      if share = breaker[:fault_injection], do: [{"faults", "refuses #{percent(share)} of the attempts on purpose"}]

    (ramp_up || []) ++ (faults || []) ++ [{"backend", backend(Settings.backend(breaker))}]
  end

  defp backend({module, []}), do: inspect(module)
  defp backend(with_options), do: inspect(with_options)
end
