# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.FlowTest do
  use ExternalService.Case, async: true

  alias ExternalService.Flow, as: Calls

  defp results(flow), do: Enum.sort(Enum.to_list(flow))

  test "map/3 gives the result of a call for each element", %{service: s} do
    start_recording(s, retry: [max_attempts: 2])
    flow = Calls.map([1, 2, 3], s, fn n -> if n == 2, do: :retry, else: {:ok, n} end)
    assert %Flow{} = flow
    assert [{:error, %RetriesExhausted{context: %{attempts: 2}}}, {:ok, 1}, {:ok, 3}] = results(flow)
  end

  test "map/4 takes options for the calls, in a list or a struct", %{service: s} do
    start_recording(s)

    for retry <- [[max_attempts: 3], %RetryOptions{max_attempts: 3}] do
      assert [{:error, %{context: %{attempts: 3}}}] = results(Calls.map([1], s, retry, fn _ -> :retry end))
    end
  end

  test "map/5 takes options for the flow that it makes", %{service: s} do
    ExternalService.start(s)
    flow = Calls.map([1, 2], s, [], &{:ok, &1}, max_demand: 1, stages: 1)
    assert flow.options[:stages] == 1
    assert results(flow) == [ok: 1, ok: 2]
  end

  test "a source that is a flow goes on as it is", %{service: s} do
    ExternalService.start(s)

    flow =
      [1, 2]
      |> Flow.from_enumerable(stages: 1)
      |> Flow.map(&(&1 * 10))
      |> Calls.map(s, &{:ok, &1})
      |> Flow.map(&elem(&1, 1))

    assert results(flow) == [10, 20]
    source = Flow.from_enumerable([1])
    flow = Calls.map(source, s, [], & &1, stages: 2)
    assert {flow.producers, flow.options, results(flow)} == {source.producers, source.options, [1]}
  end

  test "makes no call before the flow is run", %{service: s} do
    ExternalService.start(s)
    fun = attempting(:fine)
    flow = Calls.map([1, 2], s, fn _ -> fun.() end)
    assert attempts() == 0
    assert results(flow) == [:fine, :fine]
    assert attempts() == 2
  end

  test "needs a function of the element", %{service: s} do
    assert_raise FunctionClauseError, fn -> Calls.map([1], s, fn -> 1 end) end
    assert_raise FunctionClauseError, fn -> Calls.map([1], s, [], fn -> 1 end) end
  end
end
