# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Insights.FindingsTest do
  use ExternalService.Case, async: true

  alias ExternalService.Insights.{Counts, Findings}

  defp start(service, options \\ []) do
    {start_on_clock(service, options), Counts.new()}
  end

  # Calls that fail, every `ms` milliseconds, the last one now.
  defp fail_every(service, {clock, counts}, times, ms, call \\ &fail/1) do
    for n <- 1..times do
      call.(service)
      Counts.call(counts, :failed, 0, fn -> VirtualClock.now(clock) * 1_000_000 end)
      if n < times, do: VirtualClock.advance(clock, ms)
    end
  end

  defp raise_in(service) do
    ExternalService.call(service, fn -> raise "not one to retry" end)
  rescue
    RuntimeError -> :raised
  end

  defp end_well(counts, times, ms, outcome \\ :succeeded) do
    native = System.convert_time_unit(ms, :millisecond, :native)
    for _ <- 1..times//1, do: Counts.call(counts, outcome, native, fn -> 0 end)
  end

  defp found(service, {_clock, counts}), do: Findings.of(service, Counts.read(counts))
  defp checks(service, started), do: Enum.map(found(service, started), & &1.check)

  defp message(service, started) do
    assert [%{message: message}] = found(service, started)
    message
  end

  describe "an inert breaker" do
    test "is one that stays closed while more calls in a row fail than it tolerates", %{service: s} do
      started = start(s, circuit_breaker: [tolerate: 3, within: 1_000])
      fail_every(s, started, 4, 333)
      assert ExternalService.state(s) == :open
      assert checks(s, started) == []

      started = start(s, circuit_breaker: [tolerate: 3, within: 1_000])
      fail_every(s, started, 3, 700)
      assert checks(s, started) == []
      VirtualClock.advance(elem(started, 0), 700)
      fail_every(s, started, 1, 700)
      assert checks(s, started) == [:inert_breaker]
    end

    test "is told of with its figures and a window that would do", %{service: s} do
      started = start(s, circuit_breaker: [tolerate: 3, within: 1_000])
      fail_every(s, started, 6, 1_500)

      assert message(s, started) ==
               "#{inspect(s)}: 6 calls in a row failed over 7.5s, and the circuit breaker is closed. It takes 4 failures " <>
                 "within 1s to open it. They come 1.5s apart, so the first is forgotten before the last is counted. " <>
                 "Suggested: `circuit_breaker: [within: :timer.seconds(12)]`."
    end

    test "opens with the window that is suggested", %{service: s} do
      for {tolerate, ms} <- [{0, 700}, {1, 1_000}, {3, 1_500}, {10, 333}, {100, 60_000}] do
        started = start(s, circuit_breaker: [tolerate: tolerate, within: 1])
        raise_in(s)
        fail_every(s, started, tolerate + 1, ms, if(tolerate == 0, do: &raise_in/1, else: &fail/1))
        assert checks(s, started) == [:inert_breaker]

        with [_, seconds] <- Regex.run(~r/:timer\.seconds\((\d+)\)/, message(s, started)) do
          started = start(s, circuit_breaker: [tolerate: tolerate, within: 1_000 * String.to_integer(seconds)])
          fail_every(s, started, tolerate + 1, ms)
          assert ExternalService.state(s) == :open
          assert checks(s, started) == []
        end
      end
    end

    test "may be one that is not told of the failures", %{service: s} do
      started = start(s, circuit_breaker: [tolerate: 3, within: 60_000])
      fail_every(s, started, 5, 10, &raise_in/1)
      assert message(s, started) =~ "They come 10ms apart, which is often enough, so it is not told of them"
      refute message(s, started) =~ "Suggested"
    end

    test "may be one by rate whose window never has enough calls", %{service: s} do
      breaker = [failure_rate: 0.5, min_calls: 5, window: {:time, 1_000}]
      started = start(s, circuit_breaker: breaker)
      fail_every(s, started, 4, 2_000)
      assert checks(s, started) == []
      VirtualClock.advance(elem(started, 0), 2_000)
      fail_every(s, started, 1, 2_000)
      assert message(s, started) =~ "[window: {:time, :timer.seconds(20)}]`, or a smaller `:min_calls`"

      started = start(s, circuit_breaker: Keyword.put(breaker, :window, {:time, 20_000}))
      fail_every(s, started, 5, 2_000)
      assert ExternalService.state(s) == :open
    end

    test "is not one that opened and has closed again, by time, by a probe or by a hand", %{service: s} do
      for {half_open, close} <- [
            {false, &VirtualClock.advance(&1, 1_000)},
            {true, fn clock -> VirtualClock.advance(clock, 1_000) && ExternalService.call(s, fn -> :fine end) end},
            {false, fn _clock -> ExternalService.close(s) end},
            {false, fn _clock -> ExternalService.reset(s) end}
          ] do
        breaker = [tolerate: 3, within: 1_000, reset: 1_000, half_open: half_open]
        {clock, _counts} = started = start(s, circuit_breaker: breaker)
        fail_every(s, started, 4, 1)
        assert ExternalService.state(s) == :open
        VirtualClock.advance(clock, 1)
        close.(clock)
        assert ExternalService.state(s) == :closed
        fail_every(s, started, 1, 1)
        assert checks(s, started) == []
      end
    end

    test "is not one that is open, half-open or set by hand", %{service: s} do
      {clock, _} = started = start(s, circuit_breaker: [tolerate: 1, within: 1_000, half_open: true])
      fail_every(s, started, 5, 2_000)
      assert checks(s, started) == [:inert_breaker]

      for set <- [&ExternalService.open/1, &ExternalService.bypass/1] do
        set.(s)
        assert checks(s, started) == []
      end

      ExternalService.close(s)
      ExternalService.open(s, for: 10)
      VirtualClock.advance(clock, 10)
      assert ExternalService.state(s) == :half_open
      assert checks(s, started) == []
    end

    test "is none where there is no breaker, none by time, or no service", %{service: s} do
      for breaker <- [
            [tolerate: :infinity],
            [consecutive: 50],
            [failure_rate: 1.0, min_calls: 50, window: {:calls, 50}]
          ] do
        started = start(s, circuit_breaker: breaker)
        fail_every(s, started, 40, 60_000)
        assert checks(s, started) == []
      end

      started = start(s, circuit_breaker: [tolerate: 1, within: 1_000])
      fail_every(s, started, 5, 2_000)
      ExternalService.stop(s)
      assert checks(s, started) == []
    end

    test "may be a backend that tells nothing but whether it is open", %{service: s} do
      switch = StandIn.switch()
      started = start(s, circuit_breaker: [tolerate: 1, within: 1_000, backend: StandIn.backend(blown: switch)])
      fail_every(s, started, 5, 2_000)
      assert checks(s, started) == [:inert_breaker]
      StandIn.blow(switch)
      assert checks(s, started) == []
    end
  end

  describe "attempts that dominate" do
    test "are those of at least 20 calls that take more than twice the delays", %{service: s} do
      {_, counts} = started = start(s, retry: [base: 100, max_attempts: 2])
      end_well(counts, 19, 201)
      assert checks(s, started) == []
      end_well(counts, 1, 201)
      assert checks(s, started) == [:attempt_time_dominates]

      assert message(s, started) =~
               ": a call takes 201ms on average, and all the delays between its attempts are 100ms:"

      end_well(counts, 1, 180)
      assert checks(s, started) == []
    end

    test "are to be bounded by a timeout, or counted with the one there is", %{service: s} do
      for {options, suggested} <- [
            {[], "give `:within` in numbers, and bound how long an attempt may take with `timeout: ms`."},
            {[timeout: 60], "give `:within` in numbers that leave room for attempts of up to `timeout: 60`."}
          ] do
        {_, counts} = started = start(s, [retry: [base: 10, max_attempts: 2]] ++ options)
        end_well(counts, 20, 30)
        assert message(s, started) =~ "Suggested: " <> suggested
      end
    end

    test "leave out the calls that the breaker refused", %{service: s} do
      {_, counts} = started = start(s, retry: [base: 100, max_attempts: 2])
      end_well(counts, 19, 201)
      end_well(counts, 100, 0, :rejected)
      assert checks(s, started) == []
      end_well(counts, 1, 201)
      assert checks(s, started) == [:attempt_time_dominates]
    end

    test "are no finding where there are no delays, or no end of them", %{service: s} do
      for retry <- [[max_attempts: 1], [base: 0], [max_attempts: :infinity]] do
        {_, counts} = started = start(s, retry: retry)
        end_well(counts, 20, 100_000)
        assert checks(s, started) == []
      end
    end

    test "are not told of beside an inert breaker", %{service: s} do
      breaker = [tolerate: 1, within: 1_000]
      {_, counts} = started = start(s, retry: [base: 100, max_attempts: 2], circuit_breaker: breaker)
      end_well(counts, 20, 1_000)
      assert checks(s, started) == [:attempt_time_dominates]
      fail_every(s, started, 5, 2_000)
      assert checks(s, started) == [:inert_breaker]
    end
  end

  describe "a degraded service" do
    test "is one of whose 20 successes a fifth needed a retry", %{service: s} do
      {_, counts} = started = start(s)
      end_well(counts, 4, 0, :degraded)
      end_well(counts, 15, 0)
      assert checks(s, started) == []
      end_well(counts, 1, 0)
      assert checks(s, started) == [:degraded_but_succeeding]
      assert message(s, started) =~ ": 4 of 20 calls that succeeded (20 %) needed a retry"
      end_well(counts, 1, 0)
      assert checks(s, started) == []
    end

    test "is told of beside an inert breaker", %{service: s} do
      {_, counts} = started = start(s, circuit_breaker: [tolerate: 1, within: 1_000])
      end_well(counts, 20, 0, :degraded)
      fail_every(s, started, 5, 2_000)
      assert checks(s, started) == [:inert_breaker, :degraded_but_succeeding]
    end

    test "is told of though it was stopped", %{service: s} do
      {_, counts} = started = start(s)
      end_well(counts, 20, 0, :degraded)
      ExternalService.stop(s)
      assert checks(s, started) == [:degraded_but_succeeding]
    end
  end
end
