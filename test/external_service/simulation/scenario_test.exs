# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Simulation.ScenarioTest do
  use ExternalService.Case, async: true

  alias ExternalService.Simulation.Scenario

  @ms 1_000_000

  defp answers(scenario, times, seed \\ 0) do
    {answers, _scenario} =
      Enum.map_reduce(times, Scenario.new(scenario, seed), fn now, scenario ->
        {outcome, ns, scenario} = Scenario.answer(scenario, now * @ms)
        {{outcome, div(ns, @ms)}, scenario}
      end)

    answers
  end

  test "what always fails does so at once, or takes its time" do
    assert answers(:always_failing, [0, 9]) == [failure: 0, failure: 0]
    assert answers({:always_failing, 30}, [0, 9]) == [failure: 30, failure: 30]
  end

  test "what is slow succeeds" do
    assert answers({:slow, 30}, [0, 9]) == [success: 30, success: 30]
  end

  test "what fails for a time succeeds from the moment it is over" do
    assert answers({:failing_for, 30}, [0, 29, 30, 31]) == [failure: 0, failure: 0, success: 0, success: 0]
  end

  test "what fails now and then does so at its rate, the same way for the same seed" do
    drawn = answers({:intermittent, 0.3}, 1..10_000)
    assert_in_delta Enum.count(drawn, &match?({:failure, 0}, &1)), 3_000, 200
    assert drawn == answers({:intermittent, 0.3}, 1..10_000)
    assert drawn != answers({:intermittent, 0.3}, 1..10_000, 1)
    assert Enum.uniq(answers({:intermittent, 0}, 1..100)) == [success: 0]
    assert Enum.uniq(answers({:intermittent, 1.0}, 1..100)) == [failure: 0]
  end

  test "a trace answers in its order, and then there is nothing more" do
    assert answers({:trace, [failure: 5, success: 0]}, [0, 0]) == [failure: 5, success: 0]
    {:success, 0, rest} = Scenario.answer(Scenario.new({:trace, [success: 0]}, 0), 0)
    refute Scenario.more?(rest)
    assert Scenario.more?(Scenario.new(:always_failing, 0))
  end

  test "anything else is refused" do
    for other <- [
          :sometimes,
          {:slow, -1},
          {:slow, 1.5},
          {:failing_for, :infinity},
          {:intermittent, "1"},
          {:trace, 1},
          {:trace, [1]},
          {:trace, [failure: -1]},
          {:trace, [retry: 1]}
        ] do
      assert_raise FunctionClauseError, fn -> Scenario.new(other, 0) end
    end
  end
end
