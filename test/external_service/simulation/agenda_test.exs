# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Simulation.AgendaTest do
  use ExternalService.Case, async: true

  alias ExternalService.Simulation.Agenda

  defp filled(events),
    do: Enum.reduce(events, Agenda.new(), fn {at, event}, agenda -> Agenda.put(agenda, at, event) end)

  defp drained(agenda) do
    case Agenda.pop(agenda) do
      :empty -> []
      {at, event, agenda} -> [{at, event} | drained(agenda)]
    end
  end

  test "what comes first comes first, and of one time what was put down first" do
    assert drained(filled([{5, :a}, {1, :b}, {5, :c}, {0, :d}, {1, :e}])) == [
             {0, :d},
             {1, :b},
             {1, :e},
             {5, :a},
             {5, :c}
           ]
  end

  test "nothing is lost or out of order among thousands, put down before and in between" do
    :rand.seed(:exsss, 1)
    events = for n <- 1..5_000, do: {:rand.uniform(500), n}
    {first, second} = Enum.split(events, 2_500)

    {at, event, agenda} = Agenda.pop(filled(first))
    agenda = Enum.reduce(second, agenda, fn {at, event}, agenda -> Agenda.put(agenda, at, event) end)
    assert drained(agenda) == Enum.sort(events -- [{at, event}])
  end

  test "what was given a turn comes as if it had been put down then" do
    agenda = filled([{5, :before}])
    {turn, agenda} = Agenda.turn(agenda)
    agenda = agenda |> Agenda.put(5, :behind) |> Agenda.put(5, turn, :then)
    assert drained(agenda) == [{5, :before}, {5, :then}, {5, :behind}]
  end

  test "an empty one says so" do
    assert Agenda.pop(Agenda.new()) == :empty
  end
end
