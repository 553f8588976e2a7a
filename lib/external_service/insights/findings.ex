defmodule ExternalService.Insights.Findings do
  # What in the counts of a service looks wrong, and what to do about it. A new finding is a function, a row of `of/2`,
  # and a line in the documentation of `ExternalService.Insights`.
  @moduledoc false

  alias ExternalService.CircuitBreaker.Installed
  alias ExternalService.{RetryOptions, Service}

  # From fewer calls nothing is concluded.
  @min_calls 20
  @degraded_share 0.2

  @unheard "which is often enough, so it is not told of them: an exception that is not in `:retry_exceptions`, a throw " <>
             "or an exit is no failure to a breaker."

  @type finding :: %{check: atom(), message: String.t()}

  @doc "Returns the findings of service `name`, of which `counted` has been counted."
  @spec of(term(), map()) :: [finding()]
  def of(name, counted) do
    service = Service.get(name)

    # A breaker that does not open is the graver trouble, and slow attempts are mostly why.
    named(name, :inert_breaker, inert(service, counted), fn ->
      named(name, :attempt_time_dominates, slow_attempts(service, counted), fn -> [] end)
    end) ++ named(name, :degraded_but_succeeding, degraded(counted), fn -> [] end)
  end

  defp named(_name, _check, nil, otherwise), do: otherwise.()
  defp named(name, check, text, _otherwise), do: [%{check: check, message: "#{inspect(name)}: #{text}"}]

  defp inert(nil, _counted), do: nil
  defp inert(%Service{breaker: nil}, _counted), do: nil

  defp inert(service, %{consecutive_failures: streak, failing_since: since} = counted) do
    with {needed, within, how} <- rule(service.breaker_options),
         true <- streak >= needed and still_closed?(service, since) do
      elapsed = max(counted.failed_at - since, 0) / 1_000_000
      gaps = max(streak - 1, 1)

      "#{count(streak, "call")} in a row failed over #{said(elapsed)}, and the circuit breaker is closed. It takes " <>
        "#{count(needed, "failure")} within #{said(within)} to open it. They come #{said(elapsed / gaps)} apart, " <>
        if(elapsed * (needed - 1) >= within * gaps, do: too_far_apart(how, elapsed / gaps * needed), else: @unheard)
    else
      _fine -> nil
    end
  end

  # How many failures, within how many milliseconds, are sure to open it. A rule that forgets nothing with time is left out.
  defp rule(options) do
    case {options[:tolerate], options[:failure_rate], options[:window]} do
      {tolerate, _rate, _window} when is_integer(tolerate) -> {tolerate + 1, options[:within], :within}
      {_infinity, rate, {:time, ms}} when rate != nil -> {options[:min_calls], ms, :window}
      _other -> nil
    end
  end

  # A breaker that has opened since is not inert, though it may have closed again.
  defp still_closed?(%{name: name}, since) do
    view = Installed.look(name)
    view.state == :closed and Map.get(view, :changed_at, since) <= since
  end

  defp too_far_apart(how, ms) do
    "so the first is forgotten before the last is counted. Suggested: #{suggested(how, ceil(ms * 2 / 1_000))}."
  end

  defp suggested(:within, seconds), do: "`circuit_breaker: [within: :timer.seconds(#{seconds})]`"

  defp suggested(:window, seconds),
    do: "`circuit_breaker: [window: {:time, :timer.seconds(#{seconds})}]`, or a smaller `:min_calls`"

  defp slow_attempts(nil, _counted), do: nil

  defp slow_attempts(service, %{mean_call: mean} = counted) do
    window = RetryOptions.window(service.retry)

    if counted.succeeded + counted.failed >= @min_calls and window != :infinity and window > 0 and mean > 2 * window do
      "a call takes #{said(mean)} on average, and all the delays between its attempts are #{said(window)}: the time " <>
        "goes into the attempts. What is sized by the delays, `circuit_breaker: [within: :auto]` for one, is sized " <>
        "too small. Suggested: give `:within` in numbers#{bounded(service.timeout)}."
    end
  end

  defp bounded(:infinity), do: ", and bound how long an attempt may take with `timeout: ms`"
  defp bounded(ms), do: " that leave room for attempts of up to `timeout: #{ms}`"

  defp degraded(%{succeeded: succeeded, degraded: degraded}) do
    if succeeded >= @min_calls and degraded / succeeded >= @degraded_share do
      "#{degraded} of #{succeeded} calls that succeeded (#{round(100 * degraded / succeeded)} %) needed a retry. " <>
        "Callers see no errors, but they wait, and a little more trouble will reach them. Suggested: look at the reasons " <>
        "in the `[:external_service, :call, :retry]` events."
    end
  end

  defp count(1, noun), do: "1 #{noun}"
  defp count(number, noun), do: "#{number} #{noun}s"

  defp said(ms) when ms < 1_000, do: "#{round(ms)}ms"
  defp said(ms), do: "#{(ms / 1_000) |> Float.round(1) |> to_string() |> String.replace_suffix(".0", "")}s"
end
