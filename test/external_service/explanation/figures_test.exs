# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Explanation.FiguresTest do
  use ExUnit.Case, async: true

  import ExternalService.Explanation.Figures

  test "durations are milliseconds below a second, and seconds with at most one decimal" do
    for {ms, said} <- [
          {0, "none"},
          {1, "1ms"},
          {999, "999ms"},
          {1_000, "1s"},
          {1_040, "1s"},
          {1_500, "1.5s"},
          {51_100, "51.1s"},
          {59_960, "60s"},
          {3_600_000, "3600s"},
          {9_000_000_000_000, "9000000000s"},
          {:infinity, "unbounded"}
        ] do
      assert {ms, duration(ms)} == {ms, said}
    end
  end

  test "a delay of nothing is still a delay" do
    assert Enum.map([0, 10, 1_500], &delay/1) == ["0ms", "10ms", "1.5s"]
  end

  test "shares are in percent with at most one decimal" do
    assert Enum.map([0.1, 0.25, 1, 2 / 3, 0.0], &percent/1) == ["10%", "25%", "100%", "66.7%", "0%"]
  end

  test "one thing is one, and others are several" do
    assert Enum.map([0, 1, 2], &count(&1, "call")) == ["0 calls", "1 call", "2 calls"]
  end
end
