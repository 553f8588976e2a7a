# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Simulation.TimelineTest do
  use ExternalService.Case, async: true

  alias ExternalService.Simulation.Timeline

  @ms 1_000_000

  defp rows(steps) do
    steps
    |> Enum.reduce(Timeline.new(:closed), fn
      {at, {:to, state}}, timeline -> Timeline.change(timeline, at * @ms, state)
      {at, what}, timeline -> Timeline.count(timeline, at * @ms, what)
    end)
    |> Timeline.rows()
  end

  defp row(at, state, attempts, refused, failed),
    do: %{at: at, state: state, attempts: attempts, refused: refused, failed: failed}

  defp sum(rows, key), do: rows |> Enum.map(& &1[key]) |> Enum.sum()

  test "begins in the state that it is given" do
    assert rows([]) == [row(0, :closed, 0, 0, 0)]
  end

  test "puts together what happens in one millisecond, and nothing else" do
    assert rows([{0, :attempts}, {0, :failed}, {0, :attempts}, {1, :failed}, {9, :refused}]) ==
             [row(0, :closed, 2, 0, 1), row(1, :closed, 0, 0, 1), row(9, :closed, 0, 1, 0)]
  end

  test "begins a row where the state changes, and counts what follows there" do
    assert rows([{5, :failed}, {5, {:to, :open}}, {5, :refused}, {7, {:to, :half_open}}, {7, {:to, :closed}}]) ==
             [
               row(0, :closed, 0, 0, 0),
               row(5, :closed, 0, 0, 1),
               row(5, :open, 0, 1, 0),
               row(7, :half_open, 0, 0, 0),
               row(7, :closed, 0, 0, 0)
             ]
  end

  test "has at most a thousand rows, loses no count and no change of state, and stays in order" do
    changes = for at <- [10, 20_000, 99_999], do: {at, {:to, if(at == 20_000, do: :closed, else: :open)}}
    rows = rows(Enum.sort_by(changes ++ for(at <- 1..100_000, do: {at, :attempts}), &elem(&1, 0)))
    assert length(rows) in 250..1_000
    assert sum(rows, :attempts) == 100_000
    assert Enum.map(rows, & &1.at) == Enum.sort(Enum.map(rows, & &1.at))

    assert rows |> Enum.dedup_by(& &1.state) |> Enum.map(&{&1.at, &1.state}) |> tl() ==
             [{10, :open}, {20_000, :closed}, {99_999, :open}]
  end

  test "has at most a thousand rows where the changes alone are more" do
    rows = rows(for at <- 1..50_000, step <- [{:to, :open}, :refused, {:to, :closed}], do: {at, step})
    assert length(rows) <= 1_000
    assert sum(rows, :refused) == 50_000
  end
end
