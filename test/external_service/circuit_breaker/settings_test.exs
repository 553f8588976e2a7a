# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.CircuitBreaker.SettingsTest do
  use ExternalService.Case, async: true

  @opened [:circuit_breaker, :opened]
  @probing [consecutive: 1, reset: 1_000, half_open: true]

  defp state(service), do: ExternalService.state(service)
  defp fine(service), do: ExternalService.call(service, fn -> :fine end)

  # How long the breaker opens for when a call fails now.
  defp open_time(service) do
    fail(service)
    %{state: :open, retry_after: ms} = ExternalService.counts(service)
    ms
  end

  defp open_times(service, clock, count) do
    for _ <- 1..count do
      ms = open_time(service)
      VirtualClock.advance(clock, ms)
      ms
    end
  end

  describe "settings that contradict each other" do
    test "raise, and leave a running service as it was", %{service: s} do
      for {breaker, message} <- [
            {[slow_rate: 0.5], ~r/:slow_rate/},
            {[slow_rate: 0.5, failure_rate: 0.5], ~r/:slow_rate/},
            {[failure_rate: 0.5, min_calls: 11, window: {:calls, 10}], ~r/min_calls: 11/},
            {[slow_call: 5, min_calls: 11, window: {:calls, 10}], ~r/min_calls: 11/},
            {[failure_rate: 0.5, window: {:calls, 19}], ~r/min_calls: 20/},
            {[tolerate: :infinity, fault_injection: 0.5], ~r/fault_injection/}
          ] do
        start_on_clock(s, circuit_breaker: @probing)
        fail(s)
        assert_raise ArgumentError, message, fn -> ExternalService.start(s, circuit_breaker: breaker) end
        assert {breaker, state(s)} == {breaker, :open}
      end
    end

    test "raise in reconfigure/2, too, where only together they contradict", %{service: s} do
      start_on_clock(s, circuit_breaker: [failure_rate: 0.5, min_calls: 10, window: {:calls, 10}])
      for _ <- 1..9, do: fail(s)

      assert_raise ArgumentError, ~r/min_calls: 10/, fn ->
        ExternalService.reconfigure(s, circuit_breaker: [window: {:calls, 9}])
      end

      assert ExternalService.counts(s).calls == 9
    end

    test "are none: as many calls as the window holds, and a window that no rule uses", %{service: s} do
      for breaker <- [
            [failure_rate: 0.5, min_calls: 10, window: {:calls, 10}],
            [window: {:calls, 1}],
            [consecutive: 3, half_open: [probes: 1, successes: 5]],
            [failure_rate: 0.5, reset: 0],
            [tolerate: 0, reset: 0, half_open: [lease: 1]]
          ] do
        assert {breaker, ExternalService.start(s, circuit_breaker: breaker)} == {breaker, :ok}
      end
    end
  end

  describe "settings out of range" do
    test "are refused with the option's name", %{service: s} do
      for {option, values} <- [
            within: [0, -1, 1.5],
            tolerate: [-1, 1.0, 1_000_001],
            failure_rate: [0, 0.0, 1.01, -0.5, "0.5"],
            slow_rate: [0, 1.01],
            slow_call: [0, -1],
            min_calls: [0, -1, 1.5],
            consecutive: [0, -1],
            window: [{:time, 0}, {:calls, 0}, {:size, 5}, 5],
            reset: [-1, :infinity],
            reset_jitter: [-0.1, 1.1],
            reset_backoff: [[factor: 2], [factor: 0.5, max: 1], [max: 0]],
            half_open: [:yes, [probes: 0], [probes: 1_001], [successes: 0], [lease: 0], [count: 1]],
            ramp_up: [0, -1]
          ],
          value <- values do
        error = raised(fn -> ExternalService.start(s, circuit_breaker: [{option, value}]) end)
        assert %ValidationError{} = error
        assert {option, value, Exception.message(error) =~ "#{option}"} == {option, value, true}
        assert state(s) == {:error, :not_found}
      end
    end
  end

  describe "integers" do
    test "are taken where shares are meant", %{service: s} do
      breaker = [failure_rate: 1, slow_call: 10, slow_rate: 1, reset_jitter: 0, reset_backoff: [factor: 3, max: 90_000]]
      assert ExternalService.start(s, circuit_breaker: breaker) == :ok
    end
  end

  describe "reset" do
    test "of 0 is half-open at once", %{service: s} do
      start_on_clock(s, circuit_breaker: [consecutive: 1, reset: 0, half_open: true])
      fail(s)
      assert {state(s), ExternalService.available?(s)} == {:half_open, true}
      assert fine(s) == :fine
      assert state(s) == :closed
    end

    test "is counted from the moment of the failure, to the millisecond", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: @probing)
      VirtualClock.advance(clock, 900)
      fail(s)
      VirtualClock.advance(clock, 999)
      assert {:error, %CircuitBreakerOpen{context: %{retry_after: 1}}} = fine(s)
      VirtualClock.advance(clock, 1)
      assert fine(s) == :fine
    end

    test "longer than the windows is kept to: half-open after it, for one call at a time", %{service: s} do
      for rule <- [[tolerate: 0, within: 100], [failure_rate: 0.5, min_calls: 1, window: {:time, 100}]] do
        clock = start_on_clock(s, circuit_breaker: [reset: 400, half_open: true] ++ rule)
        fail(s)
        VirtualClock.advance(clock, 399)
        assert state(s) == :open
        VirtualClock.advance(clock, 1)
        assert state(s) == :half_open
        {:ok, permit} = CircuitBreaker.admit(s)
        assert {:error, %CircuitBreakerOpen{}} = fine(s)
        id = Recorder.attach(s, [@opened])
        CircuitBreaker.report(permit, :failure)
        assert Recorder.names() == [@opened]
        assert %{state: :open, retry_after: 400, probes: 0} = ExternalService.counts(s)
        Telemetry.detach(id)
      end
    end
  end

  describe "reset_backoff" do
    test "doubles the open time with each failed probe, up to its maximum", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [reset_backoff: [max: 5_000]] ++ @probing)
      assert open_times(s, clock, 6) == [1_000, 2_000, 4_000, 5_000, 5_000, 5_000]
    end

    test "grows by its factor, and the event and the refusal tell the time", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [reset_backoff: [factor: 1.5, max: 100_000]] ++ @probing)
      assert open_times(s, clock, 3) == [1_000, 1_500, 2_250]
      Recorder.attach(s, [@opened])
      fail(s)
      assert %{retry_after: 3_375} = Recorder.one(@opened)
      assert {:error, %CircuitBreakerOpen{context: %{retry_after: 3_375}}} = fine(s)
      VirtualClock.advance(clock, 3_374)
      assert state(s) == :open
    end

    test "begins anew when the breaker has closed, by a probe or by hand", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [reset_backoff: [max: 64_000]] ++ @probing)

      for close <- [&fine/1, &ExternalService.reset/1, &ExternalService.close/1] do
        assert open_times(s, clock, 3) == [1_000, 2_000, 4_000]
        close.(s)
        assert state(s) == :closed
      end

      assert open_time(s) == 1_000
    end

    test "is not moved by probes that say nothing", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [reset_backoff: [max: 64_000]] ++ @probing)
      assert open_times(s, clock, 2) == [1_000, 2_000]
      for _ <- 1..5, do: catch_throw(ExternalService.call(s, fn -> throw(:away) end))
      assert open_time(s) == 4_000
    end
  end

  describe "reset_jitter" do
    test "spreads the open time around reset, and what is told holds", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [consecutive: 1, reset: 10_000, reset_jitter: 0.2])

      times =
        for _ <- 1..200 do
          ms = open_time(s)
          VirtualClock.advance(clock, ms - 1)
          assert state(s) == :open
          VirtualClock.advance(clock, 1)
          assert state(s) == :closed
          ms
        end

      assert Enum.all?(times, &(&1 in 8_000..12_000))
      assert length(Enum.uniq(times)) > 180
      assert Enum.any?(times, &(&1 < 9_000)) and Enum.any?(times, &(&1 > 11_000))
    end

    test "never goes beyond the maximum of reset_backoff, and spreads below it", %{service: s} do
      backoff = [factor: 10, max: 5_000]
      clock = start_on_clock(s, circuit_breaker: [reset_jitter: 0.1, reset_backoff: backoff] ++ @probing)
      [first | at_most] = open_times(s, clock, 101)
      assert first in 900..1_100
      assert Enum.all?(at_most, &(&1 in 4_000..5_000))
      assert length(Enum.uniq(at_most)) > 80
    end
  end

  describe "ramp_up" do
    defp share(service) do
      answers = for _ <- 1..2_000, do: fine(service)
      Enum.count(answers, &(&1 == :fine)) / 2_000
    end

    test "lets a tenth through at first, then more and more, and all when it is over", %{service: s} do
      for half_open <- [true, false] do
        clock =
          start_on_clock(s, circuit_breaker: [consecutive: 1, reset: 1_000, half_open: half_open, ramp_up: 10_000])

        fail(s)
        VirtualClock.advance(clock, 1_000)
        if half_open, do: fine(s)
        assert state(s) == :closed
        assert_in_delta share(s), 0.1, 0.04
        VirtualClock.advance(clock, 5_000)
        assert_in_delta share(s), 0.5, 0.06
        VirtualClock.advance(clock, 4_000)
        assert_in_delta share(s), 0.9, 0.05
        VirtualClock.advance(clock, 1_000)
        assert share(s) == 1.0
      end
    end

    test "tells those it refuses that they may come back at once", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [consecutive: 1, reset: 1_000, ramp_up: 10_000])
      fail(s)
      VirtualClock.advance(clock, 1_000)
      refused = for {:error, error} <- Enum.map(1..100, fn _ -> fine(s) end), do: error
      assert Enum.uniq(refused) == [%CircuitBreakerOpen{context: %{service: s, retry_after: 0}}]
      assert %{state: :closed, rejected: rejected, retry_after: 0} = ExternalService.counts(s)
      assert rejected == length(refused)
    end

    test "is for a breaker that closes by itself: not at the start, nor by hand", %{service: s} do
      start_on_clock(s, circuit_breaker: [ramp_up: 10_000] ++ @probing)
      assert share(s) == 1.0

      for hand <- [&ExternalService.close/1, &ExternalService.reset/1] do
        fail(s)
        hand.(s)
        assert share(s) == 1.0
      end
    end

    test "ends when the breaker opens, and with a reset", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [consecutive: 1, reset: 1_000, ramp_up: 10_000])
      fail(s)
      VirtualClock.advance(clock, 1_000)
      assert state(s) == :closed
      CircuitBreaker.melt(s)
      assert state(s) == :open
      assert share(s) == 0.0
      VirtualClock.advance(clock, 1_000)
      assert share(s) < 0.2
      ExternalService.reset(s)
      assert share(s) == 1.0
    end
  end

  describe "reconfigure/2" do
    # Open, with a second to go.
    defp start_open(service, retry) do
      clock = start_on_clock(service, circuit_breaker: [tolerate: 2, reset: 5_000], retry: retry)
      for _ <- 1..3, do: fail(service)
      VirtualClock.advance(clock, 4_000)
      assert %{state: :open, retry_after: 1_000} = ExternalService.counts(service)
    end

    test "keeps the breaker when the options of retries change", %{service: s} do
      start_open(s, base: 1_000, max_attempts: 5)
      Recorder.attach(s, [@opened, [:circuit_breaker, :closed]])

      for retry <- [[base: 9_000], [max_attempts: 9], [jitter: true], [expiry: 60_000]] do
        ExternalService.reconfigure(s, retry: retry)
        assert {retry, state(s), ExternalService.counts(s).retry_after} == {retry, :open, 1_000}
      end

      assert Recorder.events() == []
    end

    test "keeps the breaker when only :melt changes", %{service: s} do
      start_open(s, [])
      ExternalService.reconfigure(s, circuit_breaker: [melt: :per_call])
      assert %{state: :open, retry_after: 1_000} = ExternalService.counts(s)
    end

    test "keeps the breaker when it is given what it has", %{service: s} do
      start_open(s, [])
      ExternalService.reconfigure(s, circuit_breaker: [tolerate: 2, reset: 5_000])
      assert %{state: :open, retry_after: 1_000} = ExternalService.counts(s)
    end

    test "to another breaker starts with that one, closed and with nothing counted", %{service: s} do
      start_open(s, [])
      Recorder.attach(s, [@opened, [:circuit_breaker, :closed]])
      ExternalService.reconfigure(s, circuit_breaker: [tolerate: 1])
      assert %{state: :closed, failures: 0} = ExternalService.counts(s)
      assert Recorder.names() == [[:circuit_breaker, :closed]]
      for _ <- 1..2, do: fail(s)
      assert state(s) == :open
    end
  end

  describe "the same settings given twice" do
    test "are the settings given once: started again, as the service's and the backend's own", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: @probing)
      backend = {CircuitBreaker.Local, @probing}
      :ok = ExternalService.start(s, clock: clock, circuit_breaker: [backend: backend] ++ @probing)
      fail(s)
      VirtualClock.advance(clock, 1_000)
      assert {:ok, permit} = CircuitBreaker.admit(s)
      assert {:error, %CircuitBreakerOpen{}} = CircuitBreaker.admit(s)
      CircuitBreaker.report(permit, :success)
      assert state(s) == :closed
    end
  end
end
