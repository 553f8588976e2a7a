# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Explanation.SectionsTest do
  use ExternalService.Case, async: true

  alias ExternalService.{Configuration, Explanation.Sections}

  defp rows(title, options) do
    sections = :mail |> Configuration.read(options) |> Sections.of([])
    for {^title, rows} <- sections, row <- rows, do: row
  end

  defp row(title, label, options) do
    assert [value] = for({^label, value} <- rows(title, options), do: value)
    value
  end

  defp retry(label, options), do: row("retry", label, retry: options)

  test "the sections of a service by default" do
    titles = for {title, _rows} <- :mail |> Configuration.read([]) |> Sections.of([]), do: title
    assert titles == ["retry", "circuit breaker", "rate limit", "concurrency", "a fully-failing call"]
  end

  describe "retry" do
    test "by default" do
      assert rows("retry", []) == [
               {"window", "150ms"},
               {"delays", "10ms, 20ms, 40ms, 80ms"},
               {"attempts", "up to 5"},
               {"time budget", "none (:expiry unset)"}
             ]
    end

    test "tells the first six delays" do
      assert retry("delays", max_attempts: 7) == "10ms, 20ms, 40ms, 80ms, 160ms, 320ms"
      assert retry("delays", max_attempts: 8) == "10ms, 20ms, 40ms, 80ms, 160ms, 320ms, ..."
      assert retry("delays", max_attempts: :infinity) == "10ms, 20ms, 40ms, 80ms, 160ms, 320ms, ..."
      assert retry("delays", max_attempts: :infinity, expiry: 50) == "10ms, 20ms, 20ms"
      assert retry("delays", max_attempts: 3, base: 0) == "0ms, 0ms"
      assert retry("delays", max_attempts: 1) == "none — a single attempt, never retried"
    end

    test "tells what bounds it, or that nothing does" do
      assert retry("window", max_attempts: 1) == "none"
      assert retry("window", max_attempts: :infinity) == "unbounded"
      assert retry("attempts", max_attempts: :infinity) == "unbounded (:max_attempts is :infinity)"
      assert retry("time budget", expiry: 10_000) == "10s"
      assert retry("time budget", expiry: :infinity) == "none (:expiry unset)"
    end

    test "tells how far jitter goes" do
      assert retry("window", jitter: true) == "150ms nominal, +/- 10% with jitter"
      assert retry("window", jitter: 0.25) == "150ms nominal, +/- 25% with jitter"
      assert retry("window", jitter: 0) == "150ms"
      assert retry("window", jitter: :full) == "150ms nominal, each delay anything down to nothing with jitter"

      assert retry("window", jitter: :decorrelated) ==
               "150ms nominal, each delay anything from the base to thrice the one before with jitter"
    end

    test "tells the delays of every kind of backoff" do
      assert retry("delays", backoff: :linear) == "10ms, 20ms, 30ms, 40ms"
      assert retry("delays", backoff: :linear, increment: 5) == "10ms, 15ms, 20ms, 25ms"
      assert retry("delays", backoff: :constant) == "10ms, 10ms, 10ms, 10ms"
      assert retry("delays", multiplier: 1.5) == "10ms, 15ms, 23ms, 34ms"
      assert retry("delays", backoff: [5, 50], max_attempts: 4) == "5ms, 50ms, 50ms"
      assert retry("delays", backoff: &(&1 * 100), cap: 250, max_attempts: 4) == "100ms, 200ms, 250ms"
      assert retry("window", backoff: &(&1 * 100), max_attempts: 4) == "600ms"
    end

    test "tells the longest wait that the service may ask for, where that is an option" do
      assert retry("retry after", retry_after_max: 30_000) == "waits up to 30s when the service asks for it"
      assert retry("retry after", retry_after_max: 0) == "does not wait when the service asks for it"
    end

    test "tells the budget, where there is one" do
      assert retry("retry budget", budget: true) == "20% of the successes and 10 per second"
      assert retry("retry budget", budget: [ratio: 0.05]) == "5% of the successes and 10 per second"
      labels = for {label, _value} <- rows("retry", retry: [budget: false]), do: label
      assert labels == ["window", "delays", "attempts", "time budget"]
    end
  end

  describe "rate limit" do
    test "none" do
      for options <- [[], [rate_limit: [limit: :infinity, per: 1]]] do
        assert rows("rate limit", options) == [{"none", "calls are not throttled"}]
      end
    end

    test "tells the limit and who waits" do
      limit = [limit: 10, per: 1_000]

      assert rows("rate limit", rate_limit: limit) == [
               {"limit", "10 per 1s"},
               {"waits up to", "one window, capped at 5s (the default)"}
             ]

      for {wait, said} <- [
            {false, "nothing — a throttled call returns RateLimited immediately"},
            {0, "nothing — a throttled call returns RateLimited immediately"},
            {:infinity, "as long as it takes"},
            {1_500, "1.5s"}
          ] do
        assert row("rate limit", "waits up to", rate_limit: [wait: wait] ++ limit) == said
      end
    end

    test "tells a backend that is not the usual one" do
      limit = [limit: 1, per: 1, backend: ExternalService.PlainLimiter]
      assert row("rate limit", "backend", rate_limit: limit) == "ExternalService.PlainLimiter"
    end
  end

  describe "concurrency" do
    test "none" do
      assert rows("concurrency", []) == [{"none", "calls are not limited in flight"}]
    end

    test "tells the limit, who waits and where" do
      assert rows("concurrency", concurrency: [limit: 4]) == [
               {"limit", "4 in flight"},
               {"waits up to", "nothing — a call without a free slot returns ServiceSaturated immediately"},
               {"reclaims after", "never: a slot is free when its holder ends, however it ends"}
             ]

      assert rows("concurrency", concurrency: [limit: 4, wait: 100, queue: 3, reclaim_after: 2_000]) == [
               {"limit", "4 in flight"},
               {"waits up to", "100ms"},
               {"queue", "3 places, first come, first served"},
               {"reclaims after", "2s"}
             ]
    end

    test "a queue without places is no wait, and one without end says nothing" do
      assert row("concurrency", "waits up to", concurrency: [limit: 4, wait: 100, queue: 0]) =~ "nothing"
      labels = for {label, _} <- rows("concurrency", concurrency: [limit: 4, wait: 1, queue: :infinity]), do: label
      assert labels == ["limit", "waits up to", "reclaims after"]
    end
  end

  describe "a call" do
    test "tells what bounds it and what answers for it" do
      assert rows("a call", timeout: 500, deadline: 10_000, fallback: {:value, 1}) == [
               {"timeout", "500ms for each attempt"},
               {"deadline", "10s for the whole call, waits included"},
               {"fallback", "answers in the place of an error"}
             ]
    end

    test "is no section where nothing does" do
      assert rows("a call", deadline: :infinity) == []
    end
  end

  describe "a fully-failing call" do
    test "by default" do
      assert rows("a fully-failing call", []) == [
               {"spends", "150ms between its attempts"},
               {"plus", "what its 5 attempts take, which nothing here bounds"}
             ]
    end

    test "tells what bounds its attempts and all of it" do
      options = [timeout: 2_000, deadline: 5_000]

      assert [{"spends", _}, {"plus", "up to 10s for its 5 attempts (:timeout)"}, {"ends", ends}] =
               rows("a fully-failing call", options)

      assert ends == "after 5s at the latest (:deadline)"
    end

    test "of one attempt, and of attempts without an end" do
      one = [retry: [max_attempts: 1]]
      endless = [retry: [max_attempts: :infinity]]
      assert row("a fully-failing call", "spends", one) == "no time between its attempts"
      assert row("a fully-failing call", "plus", one) == "what its 1 attempt takes, which nothing here bounds"
      assert row("a fully-failing call", "plus", [timeout: 5] ++ one) == "up to 5ms for its 1 attempt (:timeout)"
      assert row("a fully-failing call", "spends", endless) == "unbounded time between its attempts"
      assert row("a fully-failing call", "plus", endless) == "what its attempts take, which nothing here bounds"
      assert row("a fully-failing call", "plus", [timeout: 5] ++ endless) =~ "up to 5ms for each of its attempts"
    end
  end
end
