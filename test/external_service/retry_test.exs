# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.RetryTest do
  use ExternalService.Case, async: true

  # The delays of a call that fails throughout, as the sleep function is told them.
  defp delays(service, retry) do
    ExternalService.call(service, retry, fn -> :retry end)
    slept()
  end

  # The times at which attempts start, on the virtual clock, when each attempt takes `cost` milliseconds.
  defp starts(service, clock, retry, cost \\ 0) do
    start = VirtualClock.now(clock)
    fun = attempting(fn -> VirtualClock.advance(clock, cost) && :retry end, clock)
    assert {:error, %RetriesExhausted{}} = ExternalService.call(service, retry, fun)
    attempt_times(start)
  end

  describe "the delays" do
    setup %{service: s}, do: start_recording(s, circuit_breaker: [tolerate: :infinity])

    test "of exponential backoff double, starting from base", %{service: s} do
      assert delays(s, backoff: :exponential, base: 100) == [100, 200, 400, 800]
    end

    test "are exponential from 10 ms by default, for five attempts", %{service: s} do
      assert delays(s, []) == [10, 20, 40, 80]
    end

    test "of linear backoff grow by factor times base", %{service: s} do
      assert delays(s, backoff: :linear, base: 100, factor: 1) == [100, 200, 300, 400]
      assert delays(s, backoff: :linear, base: 100, factor: 3) == [100, 400, 700, 1000]
      assert delays(s, backoff: :linear, base: 100) == [100, 200, 300, 400]
    end

    test "of exponential backoff take no notice of factor", %{service: s} do
      assert delays(s, base: 100, factor: 7) == [100, 200, 400, 800]
    end

    test "stop growing at the cap", %{service: s} do
      retry = [backoff: :exponential, base: 100, cap: 2000, max_attempts: 9]
      assert delays(s, retry) == [100, 200, 400, 800, 1600, 2000, 2000, 2000]
      assert delays(s, backoff: :linear, base: 100, cap: 250) == [100, 200, 250, 250]
      assert delays(s, base: 100, cap: 50) == [50, 50, 50, 50]
    end

    test "stay at the cap however many attempts there are", %{service: s} do
      tail = s |> delays(base: 1, cap: 30_000, max_attempts: 200) |> Enum.drop(15)
      assert length(tail) == 184
      assert Enum.uniq(tail) == [30_000]
    end

    test "without a cap saturate instead of overflowing", %{service: s} do
      delays = delays(s, base: 1, max_attempts: 100)
      assert length(delays) == 99
      assert delays == Enum.sort(delays)
      assert Enum.all?(delays, &(&1 > 0))
      assert Enum.at(delays, 40) == Integer.pow(2, 40)
    end

    test "of base 0 are zero, and the sleep function is called for each", %{service: s} do
      assert delays(s, base: 0) == [0, 0, 0, 0]
      assert delays(s, backoff: :linear, base: 0, max_attempts: 3) == [0, 0]
    end

    test "number one less than the attempts", %{service: s} do
      for attempts <- [1, 2, 3, 10], do: assert(length(delays(s, max_attempts: attempts)) == attempts - 1)
    end

    test "with jitter: true stay within 10 % of the nominal delay", %{service: s} do
      within = fn delay, nominal -> assert delay in round(nominal * 0.9)..round(nominal * 1.1) end

      all = for _ <- 1..200, do: delays(s, base: 1000, jitter: true)
      for delays <- all, do: Enum.each(Enum.zip(delays, [1000, 2000, 4000, 8000]), fn {d, n} -> within.(d, n) end)
      firsts = Enum.map(all, &hd/1)
      assert Enum.min(firsts) < 950 and Enum.max(firsts) > 1050
      assert Enum.any?(firsts, &(&1 < 1000)) and Enum.any?(firsts, &(&1 > 1000))
    end

    test "with a proportion of jitter stay within it", %{service: s} do
      firsts = for _ <- 1..300, do: hd(delays(s, base: 1000, jitter: 0.25, max_attempts: 2))
      assert Enum.all?(firsts, &(&1 in 750..1250))
      assert Enum.min(firsts) < 850 and Enum.max(firsts) > 1150
    end

    test "with jitter: false or 0.0 are exact", %{service: s} do
      assert delays(s, base: 100, jitter: false) == [100, 200, 400, 800]
      assert delays(s, base: 100, jitter: 0.0) == [100, 200, 400, 800]
    end

    test "with jitter never exceed the cap, and differ from one another there", %{service: s} do
      delays = delays(s, base: 30_000, cap: 30_000, jitter: true, max_attempts: 201)
      assert Enum.max(delays) <= 30_000
      assert Enum.min(delays) >= 24_000
      assert length(Enum.uniq(delays)) > 180
    end

    test "with jitter do not compound: each is jittered from its nominal value", %{service: s} do
      for _ <- 1..50 do
        last = s |> delays(base: 1, jitter: 1.0, max_attempts: 11) |> List.last()
        assert last in 0..1024
      end
    end

    test "with jitter of 100 % are never negative", %{service: s} do
      assert Enum.all?(delays(s, base: 3, jitter: 1.0, max_attempts: 500, cap: 5), &(&1 in 0..5))
    end

    test "are whole milliseconds for the sleep function, rounded up", %{service: s} do
      firsts = for _ <- 1..200, do: hd(delays(s, base: 1, jitter: 0.5, max_attempts: 2))
      assert Enum.sort(Enum.uniq(firsts)) == [1, 2]
    end
  end

  describe "expiry" do
    test "trims the delay that would overshoot, so that the last attempt starts at the deadline", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: :infinity])
      assert starts(s, clock, base: 10, expiry: 50) == [0, 10, 30, 50]
      assert starts(s, clock, base: 1, expiry: 5, max_attempts: :infinity) == [0, 1, 3, 5]
      assert starts(s, clock, base: 100, expiry: 1) == [0, 1]
    end

    test "spends small budgets exactly, never rounding them up", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: :infinity])

      for expiry <- 1..60 do
        assert s |> starts(clock, base: 10, expiry: expiry, max_attempts: :infinity) |> List.last() == expiry
      end
    end

    test "ends retries that have no other bound", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: :infinity])

      assert starts(s, clock, max_attempts: :infinity, expiry: 1000) ==
               [0, 10, 30, 70, 150, 310, 630, 1000]
    end

    test "does not interrupt an attempt: 300 ms attempts under a budget of 100 ms are two", %{service: s} do
      clock = start_on_clock(s)
      assert starts(s, clock, [max_attempts: 4, expiry: 100], 300) == [0, 310]
      assert VirtualClock.now(clock) == 610
    end

    test "is counted from the end of the first attempt", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: :infinity])
      assert starts(s, clock, [base: 10, expiry: 50], 20) == [0, 30, 70]
    end

    test "that has run out allows no further attempt", %{service: s} do
      clock = start_on_clock(s)
      assert length(starts(s, clock, [base: 0, expiry: 100, max_attempts: 100], 60)) == 3
    end

    test "and max_attempts compose: whichever is reached first ends the call", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: :infinity])
      assert starts(s, clock, base: 100, expiry: 5000, max_attempts: 5) == [0, 100, 300, 700, 1500]
      assert starts(s, clock, base: 100, expiry: 1000, max_attempts: 5) == [0, 100, 300, 700, 1000]
      assert starts(s, clock, base: 100, expiry: 500, max_attempts: 5) == [0, 100, 300, 500]
    end

    test "of :infinity is none", %{service: s} do
      clock = start_on_clock(s)
      assert starts(s, clock, base: 1000, expiry: :infinity, max_attempts: 4) == [0, 1000, 3000, 7000]
    end

    test "without a virtual clock runs on real time, whatever the sleep function does", %{service: s} do
      start_recording(s, circuit_breaker: [tolerate: :infinity])

      assert {:error, %RetriesExhausted{}} =
               ExternalService.call(s, [base: 0, expiry: 5, max_attempts: :infinity], attempting(:retry))

      assert attempts() > 1
    end

    test "is spent on jittered delays too, and still ends exactly at the deadline", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: :infinity])

      for _ <- 1..50 do
        assert s |> starts(clock, base: 100, jitter: 0.5, expiry: 777, max_attempts: :infinity) |> List.last() == 777
      end
    end
  end

  describe "the sleep function" do
    test "is called once for each delay, in the caller's process", %{service: s} do
      pid = self()
      start_recording(s, sleep_function: &send(pid, {:slept, {self(), &1}}), retry: [base: 1, max_attempts: 3])
      ExternalService.call(s, fn -> :retry end)
      assert slept() == [{pid, 1}, {pid, 2}]
    end

    test "may move a virtual clock itself", %{service: s} do
      clock = VirtualClock.new()
      pid = self()

      sleep = fn ms ->
        send(pid, {:slept, ms})
        VirtualClock.advance(clock, ms)
      end

      start_recording(s, clock: clock, sleep_function: sleep)
      assert starts(s, clock, base: 10, expiry: 50) == [0, 10, 30, 50]
      assert slept() == [10, 20, 20]
    end

    test "that does not wait still gets the trimmed delay as its last one", %{service: s} do
      start_recording(s, clock: VirtualClock.new(), circuit_breaker: [tolerate: :infinity])
      assert delays(s, base: 10, expiry: 50, max_attempts: 100) == [10, 20, 40, 50]
    end

    test "whose return value is odd changes nothing", %{service: s} do
      start_recording(s, sleep_function: fn _ -> {:error, :tired} end)
      assert {:error, %RetriesExhausted{}} = ExternalService.call(s, attempting(:retry))
      assert attempts() == 5
    end

    test "that raises ends the call with its exception", %{service: s} do
      start_recording(s, sleep_function: fn _ -> raise "insomnia" end)
      assert_raise RuntimeError, "insomnia", fn -> ExternalService.call(s, attempting(:retry)) end
      assert attempts() == 1
    end
  end

  describe "a typical configuration" do
    test "opens the breaker once three calls have failed fully, and refuses the fourth", %{service: s} do
      clock =
        start_on_clock(s,
          circuit_breaker: [tolerate: 15, within: :timer.seconds(5), reset: :timer.seconds(5)],
          retry: [
            backoff: :exponential,
            base: 100,
            cap: :timer.seconds(2),
            max_attempts: 5,
            expiry: :timer.seconds(10),
            jitter: true
          ]
        )

      for _ <- 1..3 do
        assert {:error, %RetriesExhausted{context: %{attempts: 5}}} = ExternalService.call(s, fn -> :retry end)
      end

      assert VirtualClock.now(clock) in 4050..4950
      assert {:error, %CircuitBreakerOpen{}} = ExternalService.call(s, attempting(:retry))
      assert attempts() == 1
      assert ExternalService.blown?(s)
    end

    test "never opens a breaker whose window is narrower than the failures it has to count", %{service: s} do
      start_on_clock(s,
        circuit_breaker: [tolerate: 15, within: 1000],
        retry: [base: 100, max_attempts: 5]
      )

      for _ <- 1..100, do: assert({:error, %RetriesExhausted{}} = ExternalService.call(s, fn -> :retry end))
      assert ExternalService.state(s) == :closed
    end
  end

  describe "every schedule" do
    # The closed description of the delays, against which calls are checked.
    defp described(retry) do
      nominal = fn
        n when retry.backoff == :exponential -> retry.base * Integer.pow(2, n)
        n -> retry.base * (1 + retry.factor * n)
      end

      Stream.iterate(0, &(&1 + 1))
      |> Stream.map(&min(nominal.(&1), retry.cap || nominal.(&1)))
      |> Enum.take(retry.max_attempts - 1)
      |> trimmed(retry.expiry)
    end

    defp trimmed(delays, nil), do: delays
    defp trimmed(_delays, 0), do: []
    defp trimmed([delay | _], left) when delay >= left, do: [left]
    defp trimmed([delay | delays], left), do: [delay | trimmed(delays, left - delay)]
    defp trimmed([], _left), do: []

    defp schedules do
      import :proper_types

      maybe = fn type -> oneof([nil, type]) end

      tuple([
        oneof([:exponential, :linear]),
        integer(0, 5000),
        integer(1, 20),
        maybe.(integer(1, 20_000)),
        maybe.(integer(1, 100_000)),
        integer(1, 14)
      ])
    end

    defp schedule({backoff, base, factor, cap, expiry, max_attempts}) do
      %RetryOptions{backoff: backoff, base: base, factor: factor, cap: cap, expiry: expiry, max_attempts: max_attempts}
    end

    @tag :property
    test "gives the delays of its closed description, and a window that is their sum", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: :infinity])

      check(schedules(), 5_000, fn values ->
        retry = schedule(values)
        expected = Enum.scan([0 | described(retry)], &+/2)
        starts(s, clock, retry) == expected and RetryOptions.window(retry) == List.last(expected)
      end)
    end

    @tag :property
    test "keeps jittered delays within the proportion and the cap", %{service: s} do
      start_recording(s, circuit_breaker: [tolerate: :infinity])

      check({schedules(), :proper_types.float(0.0, 1.0)}, 2_000, fn {values, jitter} ->
        retry = %{schedule(values) | expiry: nil, jitter: jitter}
        nominal = described(retry)
        actual = delays(s, retry)
        length(actual) == length(nominal) and Enum.all?(Enum.zip(actual, nominal), &jittered?(&1, retry))
      end)
    end

    # At the cap the band moves down instead of being cut off. Delays are rounded up to whole milliseconds.
    defp jittered?({delay, nominal}, retry) do
      spread = retry.jitter * nominal
      top = min(nominal + spread, retry.cap || nominal + spread)
      delay >= Float.floor(max(top - 2 * spread, 0.0) * 1.0) and delay <= Float.ceil(top * 1.0)
    end
  end
end
