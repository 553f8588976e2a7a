# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Simulation.WorldTest do
  use ExternalService.Case, async: true

  alias ExternalService.{Lifecycle, Native}
  alias ExternalService.Simulation.{Pace, Scenario, Timeline, World}

  @ms 1_000_000

  defp world(given \\ [], options \\ []) do
    options = [clock: VirtualClock.new(), circuit_breaker: [tolerate: 0, reset: 100]] ++ options
    service = Lifecycle.rehearse(:x, options)

    defaults = [
      scenario: Scenario.new(:always_failing, 0),
      pace: Pace.new(nil, 1, false, 0),
      max_calls: 10,
      max_attempts: 100,
      until: 1_000 * @ms,
      timed?: true,
      past_opening?: false,
      clients: 1
    ]

    World.new(service, Keyword.merge(defaults, given))
  end

  test "what happens moves the clock to its time" do
    {event, world} = world() |> World.at(7 * @ms, :later) |> World.at(3 * @ms, :sooner) |> World.next()
    assert {event, world.now, Native.clock_now(world.service.clock)} == {:sooner, 3 * @ms, 3 * @ms}
    assert {:later, %{now: 7_000_000}} = World.next(world)
  end

  test "it is over when its time is, when nobody is left, and after so many attempts" do
    assert {:over, %{ended: 1_000_000_000}} = world() |> World.at(1_000 * @ms, :late) |> World.next()
    assert {:over, %{ended: 0}} = [clients: 0] |> world() |> World.at(0, :call) |> World.next()

    world = [max_attempts: 2] |> world() |> World.at(@ms, :first) |> World.at(@ms, :second)
    {:first, world} = World.next(world)
    assert {:over, %{ended: @ms}} = world |> World.count(:attempts) |> World.count(:refused) |> World.next()
  end

  test "an opening is noted with the calls so far, and its end is looked for" do
    world = %{world() | calls: 4}
    :changed = Native.breaker_melt(world.breaker)
    world = World.changed(world)
    assert world.opens_after == 4
    assert {:look, %{now: 100_000_000}} = World.next(world)
    assert [%{state: :closed}, %{state: :open}] = Timeline.rows(world.timeline)
  end

  test "a further call begins unless there were enough, no answer is left, or the breaker has opened" do
    assert World.open_for_calls?(world())
    refute World.open_for_calls?(%{world() | calls: 10})
    refute World.open_for_calls?(world(scenario: Scenario.new({:trace, []}, 0)))
    refute World.open_for_calls?(%{world() | opens_after: 1})
    assert World.open_for_calls?(%{world(past_opening?: true) | opens_after: 1})
  end

  describe "those who wait" do
    defp queued(world, ends) do
      ends |> Enum.with_index() |> Enum.reduce(world, fn {ms, id}, world -> World.queue(world, %{id: id}, ms * @ms) end)
    end

    defp events(world) do
      case World.next(world) do
        {:over, _world} ->
          []

        {{:tired, came}, world} ->
          {_client, world} = World.tired(world, came)
          [{div(world.now, @ms), came} | events(world)]
      end
    end

    test "are taken out in the order in which they came, but for those who have gone" do
      world = queued(world(), [10, 20, 30])
      {%{id: 0}, world} = World.tired(world, 0)
      {%{id: 1}, world} = World.take_first(world)
      {nil, world} = World.tired(world, 1)
      {%{id: 2}, world} = World.take_first(world)
      assert world.waiting == %{}
    end

    test "go when their waits end" do
      assert world() |> queued([10, 20, 20]) |> events() == [{10, 0}, {20, 1}, {20, 2}]
    end

    test "go when their waits end, also when a deadline ends those of later ones sooner" do
      assert [] |> world(deadline: 500) |> queued([30, 10, 20]) |> events() == [{10, 1}, {20, 2}, {30, 0}]
    end

    test "and are let in leave nothing behind that has to be gone through when the waits would have ended" do
      world = queued(world(), for(_ <- 1..1_000, do: 10))
      world = Enum.reduce(1..999, world, fn _, world -> world |> World.take_first() |> elem(1) end)
      assert events(world) == [{10, 0}, {10, 999}]
    end
  end
end
