# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Explanation.BreakerSectionTest do
  use ExternalService.Case, async: true

  alias ExternalService.{Configuration, ConfigCheck, Explanation.BreakerSection}

  defp rows(breaker, retry \\ []) do
    options = [circuit_breaker: breaker, retry: retry]
    found = for %{check: check} <- ConfigCheck.findings(:mail, options), do: check
    :mail |> Configuration.read(options) |> BreakerSection.rows(found)
  end

  defp row(label, breaker, retry \\ []) do
    assert [value] = for({^label, value} <- rows(breaker, retry), do: value)
    value
  end

  test "a breaker by default" do
    assert rows([]) == [
             {"opens after", "11 failing attempts — as few as 3 calls at 5 attempts each"},
             {"counting window", "10s"},
             {"resets after", "60s"},
             {"backend", "ExternalService.CircuitBreaker.Local"}
           ]
  end

  test "no breaker" do
    assert rows(tolerate: :infinity) == [{"opens after", "never — `tolerate: :infinity` installs no breaker"}]
  end

  test "what it opens after depends on what melts" do
    assert row("opens after", tolerate: 3, melt: :per_call) == "4 failing calls"
    assert row("opens after", tolerate: 0, melt: :per_call) == "1 failing call"
    assert row("opens after", [tolerate: 3], max_attempts: 1) == "4 failing attempts"
    assert row("opens after", [tolerate: 0], max_attempts: 1) == "1 failing attempt"
    assert row("opens after", tolerate: 3) =~ "4 failing attempts — possibly the first call, part-way through its own"
    assert row("opens after", [], max_attempts: :infinity) =~ "11 failing attempts — possibly the first call"
    assert row("opens after", tolerate: 5) =~ "as few as 2 calls at 5"
  end

  test "a counting window that is too narrow says for what" do
    assert row("counting window", [within: 1_000], base: 100) == "1s — narrower than 3 failing calls take; see below"

    assert row("counting window", [within: 1_000, tolerate: 4], base: 100) ==
             "1s — narrower than one call's retry window; see below"
  end

  test "a counting window that is just wide enough says no more" do
    assert row("counting window", [within: 4_500], base: 100) == "4.5s"
  end

  test "a window that is not told of below does not say so" do
    assert row("counting window", [within: 1_000], base: 100, max_attempts: 8) ==
             "1s — narrower than 2 failing calls take"
  end

  test "a window of :auto is the one that it stands for" do
    assert row("counting window", [], base: 1_000) == "90s"
  end

  test "other rules take the place of the failures in a window, or stand beside them" do
    assert [{"opens after", "3 failing attempts without a success between"}, {"resets after", _} | _] =
             rows(consecutive: 3)

    assert [{"opens after", "3 failing calls without a success between"} | _] = rows(consecutive: 3, melt: :per_call)

    assert [{"opens after", "11 " <> _}, {"counting window", _}, {"opens after", "3 " <> _} | _] =
             rows(consecutive: 3, tolerate: 10)
  end

  test "rates tell their share and over what" do
    assert row("opens when", failure_rate: 0.5) == "50% of at least 20 calls in 60s fail"

    assert row("opens when", failure_rate: 2 / 3, min_calls: 5, window: {:calls, 100}) ==
             "66.7% of at least 5 of the last 100 calls fail"

    assert row("opens when", slow_call: 2_000) == "50% of at least 20 calls in 60s take 2s or longer"
    assert row("opens when", slow_call: 2_000, slow_rate: 0.9) =~ "90% of"
  end

  test "the open time tells how it varies" do
    assert row("resets after", reset: 5_000) == "5s"
    assert row("resets after", reset: 0) == "no time"
    assert row("resets after", reset: 5_000, reset_jitter: 0.1) == "5s, +/- 10%"
    growing = [reset_backoff: [factor: 3, max: 600_000], half_open: true]
    assert row("grows", growing) == "3 times with each failed probe, up to 600s"
  end

  test "half-open tells the probes" do
    assert row("half-open", half_open: true) ==
             "1 probe at a time, closes after 1 success, a probe is replaced after 60s"

    assert row("half-open", half_open: [probes: 2, successes: 5, lease: 500]) ==
             "2 probes at a time, closes after 5 successes, a probe is replaced after 500ms"

    assert row("half-open", half_open: true, reset: 0) == "1 probe at a time, closes after 1 success"
  end

  test "the ramp, faults and a backend of one's own" do
    assert row("ramp-up", ramp_up: 30_000) == "from a tenth of the calls to all in 30s"
    assert row("faults", fault_injection: 0.5) == "refuses 50% of the attempts on purpose"
    assert row("backend", backend: StandIn) == inspect(StandIn)
    assert row("backend", backend: {StandIn, colour: :red}) == inspect({StandIn, [colour: :red]})
  end
end
