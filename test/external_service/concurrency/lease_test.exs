# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Concurrency.LeaseTest do
  use ExternalService.Case, async: true
  import ExternalService.Callers

  alias ExternalService.{Native, Service}

  @rejected [:concurrency, :rejected]
  @waited [:concurrency, :waited]
  @reclaimed [:concurrency, :reclaimed]
  @events [@rejected, @waited, @reclaimed]

  # Far longer than any test takes.
  @long 60_000

  describe "reclaim_after" do
    test "leaves a slot with its holder for that long", %{service: s} do
      clock = start_on_clock(s, concurrency: [limit: 1, reclaim_after: 100])
      hold(s)
      VirtualClock.advance(clock, 99)
      refused(s)
      assert counts(s) == {1, 0}
      assert ExternalService.saturated?(s)
    end

    test "then lets the next call take it, and says so", %{service: s} do
      clock = start_on_clock(s, concurrency: [limit: 1, reclaim_after: 100])
      Recorder.attach(s, @events)
      hold(s)
      VirtualClock.advance(clock, 100)
      assert ExternalService.call(s, fn -> counts(s) end) == {1, 0}
      assert [{@reclaimed, %{limit: 1, count: 1}, %{service: ^s}}] = Recorder.events()
    end

    test "then no longer counts it as in use", %{service: s} do
      clock = start_on_clock(s, concurrency: [limit: 1, reclaim_after: 100])
      hold(s)
      VirtualClock.advance(clock, 99)
      assert ExternalService.saturated?(s)
      VirtualClock.advance(clock, 1)
      refute ExternalService.saturated?(s)
    end

    test "makes a late return of the slot change nothing", %{service: s} do
      clock = start_on_clock(s, concurrency: [limit: 1, reclaim_after: 100])
      slow = hold(s)
      VirtualClock.advance(clock, 100)
      next = hold(s)
      assert counts(s) == {1, 0}
      finish(slow)
      assert counts(s) == {1, 0}
      refused(s)
      finish(next)
      assert counts(s) == {0, 0}
    end

    test "makes a late death of the holder change nothing", %{service: s} do
      clock = start_on_clock(s, concurrency: [limit: 2, reclaim_after: 100])
      slow = hold(s)
      VirtualClock.advance(clock, 50)
      other = hold(s)
      VirtualClock.advance(clock, 50)
      next = hold(s)
      kill(slow)
      kill(other)
      soon(fn -> counts(s) == {1, 0} end)
      finish(next)
      assert counts(s) == {0, 0}
    end

    test "takes from the one who has held longest", %{service: s} do
      clock = start_on_clock(s, concurrency: [limit: 2, reclaim_after: 100])
      [old, young] = for _ <- 1..2, do: hold(s) |> tap(fn _ -> VirtualClock.advance(clock, 60) end)
      next = hold(s)
      refused(s)
      finish(old)
      assert counts(s) == {2, 0}
      finish(young)
      assert counts(s) == {1, 0}
      finish(next)
      assert counts(s) == {0, 0}
    end

    test "gives a waiter the slot when the lease ends, and no later", %{service: s} do
      clock = start_on_clock(s, concurrency: [limit: 1, wait: 1000, reclaim_after: 100])
      Recorder.attach(s, @events)
      hold(s)
      VirtualClock.advance(clock, 30)
      assert ExternalService.call(s, fn -> VirtualClock.now(clock) end) == 100

      assert [{@reclaimed, %{limit: 1, count: 1}, _}, {@waited, %{limit: 1, wait_time: 70}, _}] = Recorder.events()
    end

    test "does not help a waiter whose wait ends before", %{service: s} do
      clock = start_on_clock(s, concurrency: [limit: 1, wait: 99, reclaim_after: 100])
      Recorder.attach(s, @events)
      hold(s)
      refused(s)
      assert VirtualClock.now(clock) == 99
      assert [{@rejected, %{limit: 1, wait_time: 99}, _}] = Recorder.events()
    end

    test "wakes a waiter on the real clock, though nothing else happens", %{service: s} do
      start_limited(s, limit: 1, wait: @long, reclaim_after: 20)
      hold(s)
      waiter = calling(s)
      entered(waiter)
      finish(waiter)
    end

    test "serves who waits before a call that comes when the lease is over, and says so", %{service: s} do
      clock = start_on_clock(s, concurrency: [limit: 1, reclaim_after: 100])
      Recorder.attach(s, [@reclaimed])
      hold(s)
      wait_in_queue(s)
      VirtualClock.advance(clock, 100)
      refused(s)
      assert counts(s) == {1, 0}
      assert [{@reclaimed, %{limit: 1, count: 1}, %{service: ^s}}] = Recorder.events()
    end

    # A waiter that does nothing on its own: on a virtual clock one that makes a call would move the clock.
    defp wait_in_queue(service) do
      slots = Service.get(service).concurrency.slots

      spawn_link(fn ->
        holder = Native.holder_new()
        {:queued, _token, _lease_end} = Native.bulkhead_acquire(slots, holder, :wait)
        receive do: (:never -> holder)
      end)

      soon(fn -> counts(service) == {1, 1} end)
    end

    test "counts every slot that was taken when the limit had shrunk", %{service: s} do
      clock = start_on_clock(s, concurrency: [limit: 3, reclaim_after: 100])
      Recorder.attach(s, [@reclaimed])
      for _ <- 1..3, do: hold(s)
      ExternalService.reconfigure(s, concurrency: [limit: 1])
      VirtualClock.advance(clock, 100)
      assert ExternalService.call(s, fn -> counts(s) end) == {1, 0}
      counts = for {_, %{count: count}, _} <- Recorder.events(), do: count
      assert Enum.sum(counts) == 3
    end

    test "is never without the option: who holds a slot keeps it", %{service: s} do
      clock = start_on_clock(s, concurrency: [limit: 1])
      holder = hold(s)
      VirtualClock.advance(clock, :timer.hours(24 * 365))
      refused(s)
      finish(holder)
      admitted(s)
    end

    test "lets a killed holder's slot go at once all the same", %{service: s} do
      start_on_clock(s, concurrency: [limit: 1, reclaim_after: 1_000_000])
      kill(hold(s))
      soon(fn -> counts(s) == {0, 0} end)
      admitted(s)
    end
  end
end
