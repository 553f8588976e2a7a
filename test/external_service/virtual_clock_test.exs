# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.VirtualClockTest do
  use ExternalService.Case, async: true
  doctest ExternalService.VirtualClock

  describe "a clock" do
    test "stands still unless it is moved" do
      clock = VirtualClock.new()
      before = VirtualClock.now(clock)
      assert is_integer(before)
      assert VirtualClock.now(clock) == before
    end

    test "moves by the milliseconds it is told" do
      clock = VirtualClock.new()
      before = VirtualClock.now(clock)
      assert VirtualClock.advance(clock, 250) == :ok
      assert VirtualClock.now(clock) == before + 250
      assert VirtualClock.advance(clock, 0) == :ok
      assert VirtualClock.now(clock) == before + 250
    end

    test "never moves back" do
      clock = VirtualClock.new()
      before = VirtualClock.now(clock)
      assert is_exception(raised(fn -> VirtualClock.advance(clock, -1) end))
      assert VirtualClock.now(clock) == before
    end

    test "refuses what is no whole number of milliseconds, and numbers that no clock holds" do
      clock = VirtualClock.new()

      for wrong <- [1.5, nil, "1", :infinity, Integer.pow(10, 30)] do
        assert is_exception(raised(fn -> VirtualClock.advance(clock, wrong) end))
      end

      assert is_exception(raised(fn -> VirtualClock.now(make_ref()) end))
      assert is_exception(raised(fn -> VirtualClock.advance(nil, 1) end))
    end

    test "can be moved by centuries, and then goes on" do
      clock = VirtualClock.new()
      before = VirtualClock.now(clock)
      century = :timer.hours(24) * 36_525
      VirtualClock.advance(clock, century)
      VirtualClock.advance(clock, 1)
      assert VirtualClock.now(clock) == before + century + 1
    end

    test "at the end of its time stays there instead of starting again" do
      clock = VirtualClock.new()
      most = div(Integer.pow(2, 63) - 1, 1_000_000)
      for _ <- 1..3, do: VirtualClock.advance(clock, most)
      last = VirtualClock.now(clock)
      VirtualClock.advance(clock, most)
      assert VirtualClock.now(clock) == last
      assert last >= most
    end

    test "is independent of other clocks" do
      [one, other] = [VirtualClock.new(), VirtualClock.new()]
      before = VirtualClock.now(other)
      VirtualClock.advance(one, 10)
      assert VirtualClock.now(other) == before
    end

    test "adds up what many processes move it by" do
      clock = VirtualClock.new()
      before = VirtualClock.now(clock)
      together(20, fn n -> for _ <- 1..500, do: VirtualClock.advance(clock, n) end)
      assert VirtualClock.now(clock) == before + 500 * Enum.sum(1..20)
    end

    test "outlives the process that made it" do
      clock = Task.await(Task.async(&VirtualClock.new/0))
      before = VirtualClock.now(clock)
      :erlang.garbage_collect()
      VirtualClock.advance(clock, 1)
      assert VirtualClock.now(clock) == before + 1
    end
  end

  describe "a service on a clock" do
    test "waits by moving the clock, and takes no time", %{service: s} do
      clock = start_on_clock(s, retry: [base: :timer.hours(1), max_attempts: 3])
      before = VirtualClock.now(clock)
      ExternalService.call(s, fn -> :retry end)
      assert VirtualClock.now(clock) == before + :timer.hours(3)
    end

    test "stays open while the clock stands still", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 0, reset: 1])
      fail(s)
      real = System.monotonic_time(:millisecond)
      eventually(fn -> System.monotonic_time(:millisecond) > real + 3 end, 10_000_000)
      assert ExternalService.state(s) == :open
      VirtualClock.advance(clock, 1)
      assert ExternalService.state(s) == :closed
    end

    test "can share it with another", %{service: s} do
      other = {s, :other}
      on_exit(fn -> ExternalService.stop(other) end)
      clock = start_on_clock(s, circuit_breaker: [tolerate: 0, reset: 10])
      ExternalService.start(other, clock: clock, circuit_breaker: [tolerate: 0, reset: 20])
      fail(s)
      fail(other)
      VirtualClock.advance(clock, 10)
      assert {ExternalService.state(s), ExternalService.state(other)} == {:closed, :open}
    end

    test "waits for longer than it counts end at its last reading", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: :infinity])
      assert {:error, error} = ExternalService.call(s, [max_attempts: 60], fn -> :retry end)
      assert error.context.attempts == 60
      assert VirtualClock.now(clock) == div(0x7FFF_FFFF_FFFF_FFFF, 1_000_000)
    end

    test "sees the same random delays each time when the clock draws from the same stream", %{service: s} do
      times = fn clock ->
        ExternalService.start(s, clock: clock, circuit_breaker: [tolerate: :infinity])
        ExternalService.call(s, [base: 1000, jitter: 0.5], attempting(:retry, clock))
        attempt_times()
      end

      assert times.(VirtualClock.new(7)) == times.(VirtualClock.new(7))
      assert times.(VirtualClock.new(7)) != times.(VirtualClock.new(8))
      assert times.(VirtualClock.new()) == times.(VirtualClock.new())
    end
  end
end
