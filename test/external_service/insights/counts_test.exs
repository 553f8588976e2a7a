# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Insights.CountsTest do
  use ExternalService.Case, async: true

  alias ExternalService.Insights.Counts

  defp at(ns), do: fn -> ns end

  defp looks(counts, times, now), do: for(_ <- 1..times, do: Counts.look?(counts, now))

  test "a row of failures keeps the times of its first and last, on a clock that may be negative" do
    counts = Counts.new()
    for ns <- [-300, -200, -100], do: Counts.call(counts, :failed, 0, at(ns))
    assert %{failing_since: -300, failed_at: -100, consecutive_failures: 3} = Counts.read(counts)
    Counts.call(counts, :succeeded, 0, at(-50))
    for ns <- [-30, -20], do: Counts.call(counts, :failed, 0, at(ns))
    assert %{failing_since: -30, failed_at: -20, consecutive_failures: 2} = Counts.read(counts)
  end

  test "the clock is read for failures only" do
    counts = Counts.new()
    for outcome <- [:succeeded, :degraded, :rejected], do: Counts.call(counts, outcome, 0, fn -> flunk("read") end)
    assert %{calls: 3, succeeded: 2, degraded: 1, rejected: 1} = Counts.read(counts)
  end

  test "the longest of many calls at once is the longest" do
    counts = Counts.new()
    second = System.convert_time_unit(1, :second, :native)
    together(20, fn n -> for k <- 1..500, do: Counts.call(counts, :succeeded, n * k * second, at(0)) end)
    assert %{calls: 10_000, worst_call: 10_000_000.0} = Counts.read(counts)
  end

  test "one look in 25 calls is taken while calls succeed, and one for each while they fail" do
    counts = Counts.new()
    assert Enum.count(looks(counts, 100, -7), & &1) == 4
    Counts.call(counts, :failed, 0, at(0))
    assert Enum.all?(looks(counts, 100, -7))
    Counts.call(counts, :rejected, 0, at(0))
    assert Enum.count(looks(counts, 100, -7), & &1) == 4
  end

  test "one speaks at a time, and nobody looks before it is time again" do
    counts = Counts.new()
    Counts.call(counts, :failed, 0, at(0))
    assert Enum.count(together(20, fn _ -> Counts.speak?(counts, 100, 200) end), & &1) == 1
    refute Counts.look?(counts, 199)
    refute Counts.speak?(counts, 199, 299)
    assert Counts.look?(counts, 200)
    assert Counts.speak?(counts, 200, 300)
  end

  test "a silence may be longer than any clock counts" do
    counts = Counts.new()
    assert Counts.speak?(counts, 100, Integer.pow(2, 64))
    refute Counts.speak?(counts, Integer.pow(2, 62), 0)
  end
end
