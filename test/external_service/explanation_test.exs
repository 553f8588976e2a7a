# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.ExplanationTest do
  use ExternalService.Case, async: true

  import ExternalService, only: [explain: 1]

  test "the whole text about options" do
    assert explain(name: :mail, retry: [base: 100, jitter: true], rate_limit: [limit: 10, per: 1_000]) == """
           :mail

             retry
               window       1.5s nominal, +/- 10% with jitter
               delays       100ms, 200ms, 400ms, 800ms
               attempts     up to 5
               time budget  none (:expiry unset)

             circuit breaker
               opens after      11 failing attempts — as few as 3 calls at 5 attempts each
               counting window  10s
               resets after     60s
               backend          ExternalService.CircuitBreaker.Local

             rate limit
               limit        10 per 1s
               waits up to  one window, capped at 5s (the default)

             concurrency
               none  calls are not limited in flight

             a fully-failing call
               spends  1.5s between its attempts
               plus    what its 5 attempts take, which nothing here bounds\
           """
  end

  test "of a started service is that of its options", %{service: s} do
    options = [retry: [base: 100, max_attempts: 3], circuit_breaker: [tolerate: 8], concurrency: [limit: 2, wait: 5]]
    ExternalService.start(s, options)
    assert explain(s) == explain([name: s] ++ options)
  end

  test "follows what is changed while it runs", %{service: s} do
    ExternalService.start(s)
    ExternalService.reconfigure(s, retry: [max_attempts: 1], circuit_breaker: [tolerate: 3])
    assert explain(s) =~ "never retried"
    assert explain(s) =~ "4 failing attempts\n"
  end

  test "shows a window as the running breaker has it, not as it would be sized now", %{service: s} do
    ExternalService.start(s)
    ExternalService.reconfigure(s, retry: [base: 1_000])
    assert explain(s) =~ "counting window  10s — narrower than 3 failing calls take\n"
  end

  test "of options without a name says so" do
    assert explain([]) =~ ~r/^"this configuration"\n\n  retry\n/
  end

  test "of a service that is not started says what to do", %{service: s} do
    assert explain(s) ==
             "Service #{inspect(s)} has not been started. To initialize it, call " <>
               "ExternalService.start(#{inspect(s)}) in your application start code."
  end

  test "takes an empty list and any other keyword list for options, whatever services are called" do
    on_exit(fn -> ExternalService.stop([]) end)
    ExternalService.start([], retry: [max_attempts: 1])
    refute explain([]) =~ "never retried"
  end

  describe "of options that could not be started" do
    test "raises what start/2 raises", %{service: s} do
      for options <- [
            [colour: :red],
            [retry: [max_attempts: 0]],
            [retry: :often],
            [rate_limit: [limit: 1]],
            [concurrency: [limit: 1, wait: :infinity]],
            [circuit_breaker: [tolerate: :infinity, fault_injection: 0.5]],
            [circuit_breaker: [melt: :per_call], retry: [max_attempts: :infinity]]
          ] do
        started = raised(fn -> ExternalService.start(s, options) end)
        explained = raised(fn -> explain([name: s] ++ options) end)
        assert {explained.__struct__, Exception.message(explained)} == {started.__struct__, Exception.message(started)}
      end
    end
  end

  test "starts nothing and writes nothing into the log", %{service: s} do
    log =
      capture_log(fn ->
        assert explain(name: s, retry: [max_attempts: 9], circuit_breaker: [fault_injection: 0.5]) =~ "on purpose"
      end)

    refute log =~ inspect(s)
    assert s not in ExternalService.services()
  end

  describe "warnings" do
    test "stand at the end, by the name of the check" do
      text = explain(name: :mail, circuit_breaker: [within: 1_000], retry: [base: 100])
      assert [_text, warnings] = String.split(text, "\n\n  warnings\n")
      assert warnings =~ ~r/^    narrow_window  :mail has a counting window narrower than .*\.$/
      assert text =~ "1s — narrower than 3 failing calls take; see below"
    end

    test "are no section where there are none" do
      refute explain([]) =~ "warnings"
    end

    test "of a started service are those of its options", %{service: s} do
      ExternalService.start(s, retry: [max_attempts: 9])
      assert explain(s) =~ "uncapped_backoff  #{inspect(s)} retries with"
    end
  end
end
