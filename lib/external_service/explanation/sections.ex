defmodule ExternalService.Explanation.Sections do
  # The sections of an explanation. A row that says nothing but that an option was left alone is left out, unless people
  # look for it.
  @moduledoc false

  import ExternalService.Explanation.Figures

  alias ExternalService.{Configuration, Explanation.BreakerSection, RetryOptions}

  @type row :: {label :: String.t(), value :: String.t()}
  @type t :: {title :: String.t(), [row()]}

  # How many delays are shown.
  @delays 6
  @local_limiter ExternalService.RateLimiter.Local

  @doc "Returns the sections about a configuration, of which these checks have found something."
  @spec of(Configuration.t(), [atom()]) :: [t()]
  def of(figures, found) do
    sections = [
      {"retry", retry(figures)},
      {"circuit breaker", BreakerSection.rows(figures, found)},
      {"rate limit", rate_limit(Configuration.group(figures, :rate_limit))},
      {"concurrency", concurrency(Configuration.group(figures, :concurrency))},
      {"a call", call(figures.options)},
      {"a fully-failing call", failing_call(figures)}
    ]

    for {title, [_ | _] = rows} <- sections, do: {title, rows}
  end

  defp retry(%{retry: retry} = figures) do
    [
      {"window", duration(figures.window) <> jitter(retry.jitter)},
      {"delays", delays(figures)},
      {"attempts", attempts(retry.max_attempts)},
      {"time budget", if(is_integer(retry.expiry), do: duration(retry.expiry), else: "none (:expiry unset)")}
      | asked(retry.retry_after_max) ++ budget(RetryOptions.budget(retry))
    ]
  end

  defp jitter(share) when share in [false, 0, 0.0], do: ""
  defp jitter(true), do: jitter(0.1)
  defp jitter(share) when is_number(share), do: " nominal, +/- #{percent(share)} with jitter"
  defp jitter(:full), do: " nominal, each delay anything down to nothing with jitter"
  defp jitter(:decorrelated), do: " nominal, each delay anything from the base to thrice the one before with jitter"

  defp delays(%{delays: []}), do: "none — a single attempt, never retried"

  defp delays(%{delays: delays}) do
    shown = delays |> Enum.take(@delays) |> Enum.map_join(", ", &delay/1)
    if length(delays) > @delays, do: shown <> ", ...", else: shown
  end

  defp attempts(:infinity), do: "unbounded (:max_attempts is :infinity)"
  defp attempts(n), do: "up to #{n}"

  defp asked(nil), do: []
  defp asked(0), do: [{"retry after", "does not wait when the service asks for it"}]
  defp asked(ms), do: [{"retry after", "waits up to #{duration(ms)} when the service asks for it"}]

  defp budget(nil), do: []

  defp budget(options),
    do: [{"retry budget", "#{percent(options[:ratio])} of the successes and #{options[:min_per_second]} per second"}]

  defp rate_limit(options) do
    case options[:limit] do
      unlimited when unlimited in [nil, :infinity] -> [{"none", "calls are not throttled"}]
      limit -> [{"limit", "#{limit} per #{duration(options[:per])}"} | waiting_for_turn(options)]
    end
  end

  defp waiting_for_turn(options) do
    wait =
      case options[:wait] do
        nil -> "one window, capped at 5s (the default)"
        :infinity -> "as long as it takes"
        no_time when no_time in [false, 0] -> "nothing — a throttled call returns RateLimited immediately"
        ms -> duration(ms)
      end

    [{"waits up to", wait} | backend(options[:backend])]
  end

  defp backend(backend) when backend in [nil, @local_limiter], do: []
  defp backend(backend), do: [{"backend", inspect(backend)}]

  defp concurrency(options) do
    if options[:limit],
      do: [{"limit", "#{options[:limit]} in flight"} | waiting_for_slot(options)],
      else: [{"none", "calls are not limited in flight"}]
  end

  defp waiting_for_slot(options) do
    {wait, queue} =
      case {options[:wait], options[:queue]} do
        {wait, _queue} when wait in [nil, false, 0] -> {nil, []}
        {_wait, 0} -> {nil, [{"queue", "no places: a call does not wait"}]}
        {wait, :infinity} -> {wait, []}
        {wait, places} -> {wait, [{"queue", count(places, "place") <> ", first come, first served"}]}
      end

    refused = "nothing — a call without a free slot returns ServiceSaturated immediately"
    [{"waits up to", if(wait, do: duration(wait), else: refused)} | queue ++ reclaiming(options[:reclaim_after])]
  end

  defp reclaiming(nil), do: [{"reclaims after", "never: a slot is free when its holder ends, however it ends"}]
  defp reclaiming(ms), do: [{"reclaims after", duration(ms)}]

  defp call(options) do
    for {label, option} <- [{"timeout", :timeout}, {"deadline", :deadline}, {"fallback", :fallback}],
        value = options[option],
        value != :infinity,
        do: {label, limit(option, value)}
  end

  defp limit(:timeout, ms), do: "#{duration(ms)} for each attempt"
  defp limit(:deadline, ms), do: "#{duration(ms)} for the whole call, waits included"
  defp limit(:fallback, _fallback), do: "answers in the place of an error"

  defp failing_call(%{window: window, options: options} = figures) do
    spends =
      case window do
        0 -> "no time between its attempts"
        :infinity -> "unbounded time between its attempts"
        ms -> "#{duration(ms)} between its attempts"
      end

    [{"spends", spends}, {"plus", own_time(figures, options[:timeout])} | ending(options[:deadline])]
  end

  defp own_time(%{attempts: :infinity}, timeout) when is_integer(timeout),
    do: "up to #{duration(timeout)} for each of its attempts (:timeout)"

  defp own_time(%{attempts: attempts}, timeout) when is_integer(timeout),
    do: "up to #{duration(attempts * timeout)} for its #{count(attempts, "attempt")} (:timeout)"

  defp own_time(%{attempts: :infinity}, _none), do: "what its attempts take, which nothing here bounds"

  defp own_time(%{attempts: attempts}, _none),
    do:
      "what its #{count(attempts, "attempt")} #{if attempts == 1, do: "takes", else: "take"}, which nothing here bounds"

  defp ending(ms) when is_integer(ms), do: [{"ends", "after #{duration(ms)} at the latest (:deadline)"}]
  defp ending(_none), do: []
end
