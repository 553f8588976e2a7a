# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Simulation.PaceTest do
  use ExternalService.Case, async: true

  alias ExternalService.Simulation.Pace

  @ms 1_000_000
  @second 1_000_000_000

  defp next(pace, began, now, told), do: pace |> Pace.next(began, now, told) |> elem(0)

  test "without a rate clients begin together, and go on when a call is over" do
    pace = Pace.new(nil, 3, false, 0)
    assert for(index <- 0..2, do: Pace.first(pace, index, 3)) == [0, 0, 0]
    assert next(pace, 5, 9, nil) == 9
    assert next(pace, 9, 9, nil) == 9
  end

  test "where only time ends it a client begins one call in a millisecond at most" do
    pace = Pace.new(nil, 1, true, 0)
    assert next(pace, 9, 9, nil) == 9 + @ms
    assert next(pace, 9, 5 * @ms, nil) == 5 * @ms
  end

  test "who is refused comes when it was told to, at the soonest after a millisecond, or never" do
    pace = Pace.new(nil, 1, false, 0)
    assert next(pace, 0, 9, 50 * @ms) == 9 + 50 * @ms
    assert next(pace, 0, 9, 0) == 9 + @ms
    assert next(pace, 0, 9, :infinity) == :never
  end

  test "at a rate clients begin one after the other, and share it at random distances" do
    pace = Pace.new(10, 5, true, 0)
    assert for(index <- 0..4, do: Pace.first(pace, index, 5)) == for(index <- 0..4, do: index * div(@second, 10))
    {times, _pace} = Enum.map_reduce(1..1_000, pace, fn _n, pace -> Pace.next(pace, 0, 0, :infinity) end)
    assert Enum.min(times) >= div(@second, 4)
    assert Enum.max(times) <= div(3 * @second, 4)
    assert_in_delta Enum.sum(times) / 1_000, @second / 2, @second / 50
  end

  test "a call that takes longer than its share of time is followed by the next at once" do
    assert next(Pace.new(1_000, 1, true, 0), 0, @second, nil) == @second
  end

  test "the seed chooses the distances" do
    [a, b, c] = for seed <- [1, 1, 2], do: next(Pace.new(1, 1, true, seed), 0, 0, nil)
    assert a == b
    assert a != c
  end
end
