# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Simulation.WorldTest do
  use ExternalService.Case, async: true

  alias ExternalService.{Lifecycle, Native}
  alias ExternalService.Simulation.{Pace, Scenario, Timeline, World}

  @ms 1_000_000

  defp world(given \\ []) do
    service = Lifecycle.rehearse(:x, clock: VirtualClock.new(), circuit_breaker: [tolerate: 0, reset: 100])

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
end
