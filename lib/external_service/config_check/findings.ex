defmodule ExternalService.ConfigCheck.Findings do
  # The checks. Each looks at the figures of a configuration and says what is suspicious and what to write in its place,
  # or nothing.
  #
  # To add one: write its clause of `check/2`, add its name to the list, in the order in which they are told, and a test in
  # test/external_service/config_check/findings_test.exs.
  @moduledoc false

  import ExternalService.Explanation.Figures

  alias ExternalService.CircuitBreaker.Settings
  alias ExternalService.{ConfigCheck, Configuration, RetryOptions, Unit}

  @checks [
    :uncapped_backoff,
    :self_tripping_call,
    :unbounded_retrying,
    :narrow_window,
    :factor_of_old,
    :unreachable_half_open,
    :unreachable_min_calls,
    :idle_reset_backoff,
    :attempts_beyond_deadline,
    :wait_beyond_deadline,
    :dry_budget
  ]

  # So many doublings are a few seconds from the default base.
  @uncapped_attempts 6
  # What the increment in milliseconds of other linear backoffs starts at.
  @milliseconds 10

  @doc "Returns what is suspicious about a configuration, in the order of the list."
  @spec of(Configuration.t()) :: [ConfigCheck.finding()]
  def of(%Configuration{name: name} = figures) do
    for check <- @checks, sentence <- List.wrap(check(check, figures)) do
      %{check: check, message: "#{inspect(name)} #{sentence}"}
    end
  end

  defp check(:uncapped_backoff, figures) do
    if uncapped?(figures) do
      "retries with uncapped exponential backoff: a call that fails throughout spends #{duration(figures.window)} " <>
        "between its attempts, #{delay(List.last(figures.delays))} of it before the last. Hold the delays, for example " <>
        "with `retry: [cap: :timer.seconds(2)]`."
    end
  end

  defp check(:self_tripping_call, %{retry: %{max_attempts: attempts}, breaker: breaker} = figures)
       when is_integer(attempts) and breaker != nil do
    attempts = at_one(attempts, figures.options[:endpoints])
    if breaker[:melt] == :per_attempt, do: self_tripping(attempts, breaker[:tolerate], breaker[:consecutive])
  end

  defp check(:unbounded_retrying, %{retry: %{max_attempts: :infinity, expiry: expiry}, breaker: breaker} = figures)
       when expiry in [nil, :infinity] and breaker != nil do
    if breaker[:melt] == :per_attempt and not is_integer(figures.options[:deadline]) do
      "has unbounded retries: with `max_attempts: :infinity` and no `:expiry` nothing but a refusal ends a call that " <>
        "fails. Bound it in time: `retry: [max_attempts: :infinity, expiry: :timer.seconds(30)]`."
    end
  end

  # An uncapped backoff makes the window of the retries what it is: with a cap the counting window may well do.
  defp check(:narrow_window, %{breaker: breaker, narrowest: narrowest, window: window} = figures)
       when is_integer(narrowest) and window > 0 do
    if breaker[:within] < narrowest and not uncapped?(figures) do
      "has a counting window narrower than the failures it has to count: #{taken(figures)} between the attempts " <>
        "alone, and `within: #{breaker[:within]}` forgets a failure before, so that calls one after the other may never " <>
        "open the breaker. Widen it: `circuit_breaker: [within: :timer.seconds(#{ceil(figures.sized / 1000)})]`, or leave " <>
        "it to `within: :auto`."
    end
  end

  # Of an option of the same name that was in milliseconds.
  defp check(:factor_of_old, %{retry: %{backoff: :linear, factor: factor, increment: nil}} = figures)
       when factor >= @milliseconds do
    "has linear delays that grow by #{factor} times the base: #{first(figures.delays)}. For delays that " <>
      "grow by #{factor} milliseconds write `retry: [increment: #{factor}]` in the place of `factor: #{factor}`."
  end

  defp check(:unreachable_half_open, %{breaker: breaker} = figures) when breaker != nil do
    longest = Enum.max([0 | Enum.filter([figures.options[:timeout], breaker[:slow_call]], &is_integer/1)])

    with %{lease: lease} when lease < longest <- Settings.half_open(breaker) do
      "may stay half-open for ever: a probe is replaced after #{duration(lease)} and what it reports later is not heard, " <>
        "while an attempt may take #{duration(longest)}. Wait longer for probes: " <>
        "`circuit_breaker: [half_open: [lease: #{2 * longest}]]`."
    else
      _reachable -> nil
    end
  end

  # Such a service does not start; a module with these options is told when it is compiled.
  defp check(:unreachable_min_calls, figures) do
    breaker = Configuration.group(figures, :circuit_breaker)

    with {:calls, calls} <- breaker[:window],
         min when is_integer(min) and min > calls <- Keyword.get(breaker, :min_calls, 20),
         true <- breaker[:failure_rate] != nil or breaker[:slow_call] != nil do
      "counts rates over the last #{count(calls, "call")} and believes none of fewer than #{min}, so no rate ever opens " <>
        "the breaker: `circuit_breaker: [min_calls: #{calls}]`, or a longer `:window`."
    else
      _reachable -> nil
    end
  end

  defp check(:idle_reset_backoff, %{breaker: breaker}) when breaker != nil do
    if breaker[:reset_backoff] != nil and Settings.half_open(breaker) == nil do
      "has a `:reset_backoff`, which lengthens the open time when a probe fails, and no probes: every open time is " <>
        "#{duration(breaker[:reset])}. Add `circuit_breaker: [half_open: true]`."
    end
  end

  defp check(:attempts_beyond_deadline, %{attempts: attempts, window: window, options: options})
       when is_integer(attempts) and is_integer(window) do
    # Attempts that nothing bounds may as well take no time.
    timeout = if is_integer(options[:timeout]), do: options[:timeout], else: 0
    deadline = options[:deadline]

    if is_integer(deadline) and attempts * timeout + window > deadline do
      "ends calls before they have made all their attempts: #{count(attempts, "attempt")} may take " <>
        "#{duration(attempts * timeout + window)}, waits between them included, and the deadline is " <>
        "#{duration(deadline)}. Make fewer or shorter attempts, or set `deadline: #{attempts * timeout + window}`."
    end
  end

  defp check(:wait_beyond_deadline, %{options: options} = figures) do
    for group <- [:rate_limit, :concurrency],
        wait = Configuration.group(figures, group)[:wait],
        is_integer(wait) and is_integer(options[:deadline]) and wait > options[:deadline] do
      "lets a call wait #{duration(wait)} with `#{group}: [wait: #{wait}]`, which is longer than the whole of it may take: " <>
        "`deadline: #{options[:deadline]}` ends it before. Shorten the wait."
    end
  end

  defp check(:dry_budget, %{retry: %{} = retry}) do
    budget = RetryOptions.budget(retry)

    if budget != nil and Unit.ppm(budget[:ratio]) == 0 and budget[:min_per_second] == 0 do
      "has a retry budget that nothing fills again: once it is spent no call is retried until the service is started " <>
        "afresh. Give it a share of the successes: `retry: [budget: [ratio: 0.2]]`."
    end
  end

  defp check(_check, _unread), do: nil

  # Delays of nothing do not grow.
  defp uncapped?(%{window: window, retry: %{backoff: :exponential, cap: nil, max_attempts: attempts} = retry})
       when window != 0 and is_integer(attempts) and attempts > @uncapped_attempts,
       do: retry.multiplier > 1

  defp uncapped?(_figures), do: false

  # Each endpoint has a breaker, and a retry goes to one that was not tried. How many a function gives is not known.
  defp at_one(attempts, nil), do: attempts
  defp at_one(attempts, [_ | _] = endpoints), do: ceil(attempts / length(endpoints))
  defp at_one(_attempts, _function), do: 1

  defp self_tripping(attempts, tolerate, _consecutive) when is_integer(tolerate) and attempts > tolerate do
    "can open its breaker with a single failing call: each attempt counts, up to #{attempts} of them, and " <>
      "#{tolerate} are tolerated. Count calls with `circuit_breaker: [melt: :per_call, tolerate: #{tolerate}]`, or " <>
      "tolerate the attempts of several, for example `circuit_breaker: [tolerate: #{3 * attempts}]`."
  end

  defp self_tripping(attempts, _tolerate, consecutive) when is_integer(consecutive) and attempts >= consecutive do
    "can open its breaker with a single failing call: each attempt counts, up to #{attempts} of them, and " <>
      "#{consecutive} in a row open it. Count calls with " <>
      "`circuit_breaker: [melt: :per_call, consecutive: #{consecutive}]`, or more attempts, for example " <>
      "`circuit_breaker: [consecutive: #{3 * attempts}]`."
  end

  defp self_tripping(_attempts, _tolerate, _consecutive), do: nil

  defp taken(%{calls: 1, narrowest: ms}), do: "one failing call takes #{duration(ms)}"
  defp taken(%{calls: calls, narrowest: ms}), do: "#{calls} failing calls take #{duration(ms)}"

  defp first([]), do: "none"
  defp first(delays), do: delays |> Enum.take(3) |> Enum.map_join(", ", &delay/1)
end
