# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Simulation.ChartTest do
  use ExternalService.Case, async: true

  alias ExternalService.Simulation
  alias ExternalService.Simulation.Chart

  defp row(at, state, attempts, refused, failed),
    do: %{at: at, state: state, attempts: attempts, refused: refused, failed: failed}

  defp text(given),
    do: %Simulation{opens_after: 1, worst_call: 5, attempts: 3, calls: 2} |> struct!(given) |> Chart.text()

  defp bars(given), do: given |> text() |> String.split("\n") |> Enum.drop(8)

  test "tells the figures" do
    assert text(elapsed: 0, refused: 4, timeline: [row(0, :closed, 1, 0, 0)]) == """
             opens after  1 call
             worst call   5 ms
             calls        2
             attempts     3, and 4 refused
             elapsed      0 ms

             # succeeded  x failed  . refused

             0 ms  closed  ########################################\
           """

    assert text(elapsed: 0, opens_after: :never) =~ "opens after  never\n"
    assert text(elapsed: 0, opens_after: 12) =~ "opens after  12 calls\n"
  end

  test "draws a slice of time in a line, to scale, and anything that happened at all" do
    timeline = [
      row(0, :closed, 20, 0, 0),
      row(10, :closed, 9, 1, 4),
      row(20, :closed, 0, 0, 0),
      row(30, :open, 0, 1, 0)
    ]

    assert Enum.take(bars(elapsed: 200, timeline: timeline), 5) == [
             "    0 ms  closed         ########################################",
             "   10 ms  closed         ##########xxxxxxxx..",
             "   20 ms  closed",
             "   30 ms  closed > open  ..",
             "   40 ms  open"
           ]
  end

  test "has twenty lines, and fewer where less time has passed" do
    assert length(bars(elapsed: 200)) == 20
    assert length(bars(elapsed: 1_999)) == 20
    assert length(bars(elapsed: 7)) == 7
    assert length(bars(elapsed: 0)) == 1
  end

  test "draws a failure where the attempt began" do
    timeline = [row(0, :closed, 1, 0, 0), row(150, :closed, 1, 0, 1), row(170, :closed, 0, 0, 1)]
    failed = for {line, at} <- Enum.with_index(bars(elapsed: 200, timeline: timeline)), line =~ "x", do: at * 10
    assert failed == [0, 150]
  end

  test "shortens what has changed many times, and puts what happens at the end into the last line" do
    states =
      for {state, n} <- Enum.with_index([:closed, :open, :half_open, :open, :half_open]), do: row(n, state, 0, 0, 0)

    [first | _] = bars(elapsed: 200, timeline: states ++ [row(200, :closed, 1, 0, 0)])
    assert first =~ "closed > ... > half_open"
    assert List.last(bars(elapsed: 200, timeline: states ++ [row(200, :closed, 1, 0, 0)])) =~ "half_open > closed"
  end
end
