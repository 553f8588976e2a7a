# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.ConfigurationTest do
  use ExternalService.Case, async: true

  alias ExternalService.Configuration

  defp figures(options), do: Configuration.read(:mail, options)

  test "tells what the retries of a call amount to" do
    assert %{window: 150, attempts: 5, delays: [10, 20, 40, 80]} = figures([])
    assert %{window: 0, attempts: 1, delays: []} = figures(retry: [max_attempts: 1])
    assert %{window: 50, attempts: 4, delays: [10, 20, 20]} = figures(retry: [expiry: 50])
    assert %{window: :infinity, attempts: :infinity} = figures(retry: [max_attempts: :infinity])
    assert %{attempts: 2_000} = figures(retry: [max_attempts: 2_000, cap: 1])
  end

  test "tells the delays of every kind of backoff, a function's being those it returns" do
    assert %{window: 70, delays: [10, 15, 20, 25]} = figures(retry: [backoff: :linear, increment: 5])
    assert %{window: 40, attempts: 5} = figures(retry: [backoff: :constant])
    assert %{window: 150, delays: [50, 100]} = figures(retry: [backoff: [50, 100], max_attempts: 3])
    assert %{window: 30, delays: [10, 20], calls: 4} = figures(retry: [backoff: &(&1 * 10), max_attempts: 3])
    unreadable = fn _retry -> throw(:not_now) end
    assert %{retry: nil, options: [retry: _]} = figures(retry: [backoff: unreadable])
  end

  test "tells how many failing calls open the breaker, and in which time" do
    assert %{calls: 3, narrowest: 450, sized: 10_000} = figures([])
    assert %{calls: 3, narrowest: 45_000, sized: 90_000} = figures(retry: [base: 1_000])
    assert %{calls: 10, narrowest: 150_000} = figures(retry: [base: 1_000], circuit_breaker: [melt: :per_call])
    assert %{calls: nil, narrowest: nil, sized: nil} = figures(circuit_breaker: [tolerate: :infinity])
  end

  test "are those of the core: as many calls as it says open the breaker, within the time it says", %{service: s} do
    for attempts <- [1, 2, 5], tolerate <- [0, 1, 4, 5, 14, 15] do
      options = [retry: [max_attempts: attempts, base: 100, cap: 300], circuit_breaker: [tolerate: tolerate]]
      clock = start_on_clock(s, options)
      calls = calls_to_open(s)
      assert {options, figures(options).calls} == {options, calls}
      assert VirtualClock.now(clock) <= figures(options).narrowest
    end
  end

  defp calls_to_open(service, calls \\ 1) do
    ExternalService.call(service, fn -> :retry end)
    if ExternalService.state(service) == :open, do: calls, else: calls_to_open(service, calls + 1)
  end

  test "leaves out what can not be read, and only that" do
    assert %{retry: nil, window: nil, breaker: nil, name: :mail} = figures(retry: [base: -1])
    assert %{breaker: nil, calls: nil, attempts: 5} = figures(circuit_breaker: [tolerate: -1])
    assert %{retry: %RetryOptions{}, options: []} = figures(:nonsense)
  end

  test "a group of options is none where it is not one" do
    figures = figures(retry: %RetryOptions{base: 7}, concurrency: :few, rate_limit: [limit: 1])
    assert Configuration.group(figures, :retry)[:base] == 7
    assert Configuration.group(figures, :concurrency) == []
    assert Configuration.group(figures, :rate_limit) == [limit: 1]
    assert Configuration.group(figures, :circuit_breaker) == []
  end
end
