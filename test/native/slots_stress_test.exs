# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Native.SlotsStressTest do
  # Slots are neither lost nor made up, whatever happens at once. The counts below are the least; the environment
  # variable STRESS multiplies them.
  use ExternalService.Case, async: false
  import ExternalService.Callers

  alias ExternalService.{Concurrency, Native, Service, ServiceSaturated}

  @factor max(1, String.to_integer(System.get_env("STRESS", "1")))

  # Longer than any wait that is not lost.
  @long 60_000

  # Events, by their place in the counters.
  @acquired 1
  @released 2
  @refused 3
  @gave_up 4
  @killed 5
  @events 5
  # What must never be.
  @lost 6
  @above_limit 7

  defp slots(service), do: Service.get(service).concurrency.slots

  # The service's limit as seen by callers who do not wait, who wait for ever, a moment, or no longer than it takes the
  # others to have a turn: such a wait ends about when the turn comes.
  defp callers(service) do
    limit = Service.get(service).concurrency

    {%{limit | wait: false}, %{limit | wait: @long}, %{limit | wait: 1}, %{limit | wait: 1, clock: VirtualClock.new()}}
  end

  defp any_of({at_once, patient, brief, hasty}) do
    case :rand.uniform(100) do
      n when n <= 30 -> {:at_once, at_once}
      n when n <= 70 -> {:patient, patient}
      n when n <= 71 -> {:brief, brief}
      _ -> {:hasty, hasty}
    end
  end

  # One acquisition, held for no time or for some turns of others, and given back.
  defp take(callers, sure?, tally, inside) do
    {kind, concurrency} = any_of(callers)

    case Concurrency.enter(concurrency) do
      {:ok, holder} ->
        :counters.add(tally, @acquired, 1)
        inside.(fn -> for(_ <- 1..:rand.uniform(3), do: :erlang.yield()) end)
        Concurrency.leave(concurrency, holder)
        :counters.add(tally, @released, 1)

      {:error, %ServiceSaturated{}} ->
        :counters.add(tally, refusal(kind, sure?), 1)
    end
  end

  # `sure?`: whoever is patient finds a place in the queue, and gets a slot in the end.
  defp refusal(:at_once, _sure?), do: @refused
  defp refusal(:patient, true), do: @lost
  defp refusal(_waited, _sure?), do: @gave_up

  defp work(callers, sure?, tally, inside) do
    for _ <- 1..60, do: take(callers, sure?, tally, inside)
    {:messages, []} = Process.info(self(), :messages)
  end

  # Counts those who are inside, and those who are too many.
  defp counting(inside, limit, tally) do
    fn fun ->
      if :atomics.add_get(inside, 1, 1) > limit, do: :counters.add(tally, @above_limit, 1)
      fun.()
      :atomics.sub(inside, 1, 1)
    end
  end

  # Takes slots until it is killed. It may be killed anywhere, so it can not be counted among those inside.
  defp victim(callers, sure?, tally) do
    take(callers, sure?, tally, & &1.())
    victim(callers, sure?, tally)
  end

  defp start_all(count, fun), do: for(_ <- 1..count, do: spawn_monitor(fun))

  defp await_end({pid, ref}) do
    assert_receive {:DOWN, ^ref, :process, ^pid, reason}, 2 * @long * @factor
    assert reason in [:normal, :killed]
  end

  defp kill_at_random({pid, _ref} = victim, tally) do
    for _ <- 1..:rand.uniform(50), do: :erlang.yield()
    Process.exit(pid, :kill)
    await_end(victim)
    :counters.add(tally, @killed, 1)
  end

  defp events(tally), do: Enum.sum(for event <- 1..@events, do: :counters.get(tally, event))

  # Twelve workers and some victims, until all are done; then nothing is held and nobody waits.
  defp storm(service, callers, tally) do
    limit = :rand.uniform(6)
    queue = Enum.random([:infinity, :infinity, :infinity, 3])
    Native.bulkhead_set(slots(service), limit, queue)
    sure? = queue == :infinity
    inside = counting(:atomics.new(1, []), limit, tally)
    victims = start_all(:rand.uniform(6), fn -> victim(callers, sure?, tally) end)
    workers = start_all(12, fn -> work(callers, sure?, tally, inside) end)
    Enum.each(victims, &kill_at_random(&1, tally))
    Enum.each(workers, &await_end/1)
    soon(fn -> counts(service) == {0, 0} end)
  end

  defp storm_until(service, callers, tally, target) do
    storm(service, callers, tally)
    if events(tally) < target, do: storm_until(service, callers, tally, target)
  end

  @tag timeout: :infinity
  test "two million events over all schedulers lose no slot and no wake-up, nor pass the limit", %{
    service: s
  } do
    start_limited(s, limit: 1)
    tally = :counters.new(7, [:write_concurrency])
    storm_until(s, callers(s), tally, @factor * 2_000_000)

    assert counts(s) == {0, 0}
    assert :counters.get(tally, @above_limit) == 0
    assert :counters.get(tally, @lost) == 0
    for event <- 1..@events, do: assert(:counters.get(tally, event) > 100 * @factor)
  end

  # Takes slots until it is killed, every other one while it holds one already. The inner ones it does not wait for long:
  # processes that wait for each other's slots would do nothing else.
  defp nested_victim({at_once, _patient, brief, hasty} = callers, tally) do
    inner = {at_once, hasty, brief, hasty}
    take(callers, true, tally, fn _pause -> take(inner, false, tally, & &1.()) end)
    take(callers, true, tally, & &1.())
    nested_victim(callers, tally)
  end

  @tag timeout: :infinity
  test "ten thousand processes killed anywhere, waiting, holding or nested, leave nothing behind", %{service: s} do
    start_limited(s, limit: 3)
    tally = :counters.new(7, [:write_concurrency])
    callers = callers(s)

    for _ <- 1..(100 * @factor) do
      victims = start_all(100, fn -> nested_victim(callers, tally) end)
      victims |> Enum.shuffle() |> Enum.each(&kill_at_random(&1, tally))
      soon(fn -> counts(s) == {0, 0} end)
    end

    assert :counters.get(tally, @killed) == 10_000 * @factor
    assert :counters.get(tally, @lost) == 0
    admitted(s)
  end

  # The first to come gets the slot, round after round; the other one queues for it in about the instant in which it is
  # given back. Then there is silence, in which a wake-up that got lost would stay lost.
  defp duel(patient, turns, rounds, own, other) do
    for round <- 1..rounds do
      {:ok, holder} = Concurrency.enter(patient)
      for _ <- 1..:rand.uniform(30), do: :atomics.get(turns, own)
      Concurrency.leave(patient, holder)
      :atomics.put(turns, own, round)
      spin(fn -> :atomics.get(turns, other) >= round end)
    end
  end

  defp spin(check), do: check.() || (:erlang.yield() && spin(check))

  @tag timeout: :infinity
  test "a slot that is given back just as somebody queues for it is theirs", %{service: s} do
    start_limited(s, limit: 1)
    {_at_once, patient, _brief, _hasty} = callers(s)
    turns = :atomics.new(2, [])
    rounds = 200_000 * @factor

    duellists =
      for {own, other} <- [{1, 2}, {2, 1}], do: spawn_monitor(fn -> duel(patient, turns, rounds, own, other) end)

    Enum.each(duellists, &await_end/1)
    assert counts(s) == {0, 0}
  end

  describe "a million calls of one process, which never receives a message" do
    @chunk 1000
    @chunks 1000 * @factor

    # The time of each thousand acquisitions and returns, in order.
    defp chunks(run), do: for(_ <- 1..@chunks, do: elem(:timer.tc(fn -> repeat(run, @chunk) end), 0))

    defp repeat(_run, 0), do: :ok

    defp repeat(run, times) do
      run.()
      repeat(run, times - 1)
    end

    defp median(times), do: times |> Enum.sort() |> Enum.at(div(length(times), 2))

    # From OTP 27 on, code that leaves garbage takes longer and longer until the collector begins afresh, and then as long
    # as at first. What grows for good is as fast as at first in none of the later tenths.
    defp growth(run) do
      times = Task.await(Task.async(fn -> chunks(run) end), :infinity)
      [first | later] = times |> Enum.chunk_every(div(@chunks, 10)) |> Enum.map(&median/1)
      Enum.min(Enum.take(later, -5)) / first
    end

    # A neighbour on this machine may slow down the end of one run. What grows does so in each.
    defp flat?(run), do: Enum.any?(1..3, fn _ -> growth(run) <= 1.5 end)

    test "take no longer in the end than at the beginning", %{service: s} do
      start_limited(s, limit: 5)
      limit = Service.get(s).concurrency

      assert flat?(fn ->
               {:ok, holder} = Concurrency.enter(limit)
               Concurrency.leave(limit, holder)
             end)
    end

    test "nor do those that are refused, and those that give up waiting", %{service: s} do
      start_limited(s, limit: 1)
      hold(s)
      {at_once, _patient, _brief, hasty} = callers(s)
      assert flat?(fn -> {:error, _saturated} = Concurrency.enter(at_once) end)
      assert flat?(fn -> {:error, _saturated} = Concurrency.enter(hasty) end)
    end

    test "leave memory as it was", %{service: s} do
      start_limited(s, limit: 5)
      parent = self()

      pid =
        spawn_link(fn ->
          for round <- 1..2 do
            repeat(fn -> ExternalService.call(s, fn -> :fine end) end, 500_000 * @factor)
            :erlang.garbage_collect()
            send(parent, {round, Process.info(self(), :memory), system_memory()})
            receive do: (^round -> :ok)
          end
        end)

      assert_receive {1, {:memory, own}, system}, @long * @factor
      send(pid, 1)
      assert_receive {2, {:memory, later}, system_later}, @long * @factor
      send(pid, 2)
      assert later <= own + 1000
      # A byte for each call would be half of this.
      assert system_later - system < 1_000_000 * @factor
    end

    # The VM counts only what its own allocators give, which a sanitizer has it do without.
    defp system_memory do
      :erlang.memory(:system)
    rescue
      ErlangError -> 0
    end
  end
end
