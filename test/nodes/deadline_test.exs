# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Nodes.DeadlineTest do
  use ExternalService.Case, async: true

  alias ExternalService.{DeadlineExceeded, Hops}

  setup do
    {near, far} = Hops.start_nodes()
    retry = [retry: [max_attempts: 4, base: 0]]
    for node <- [near, far], do: :ok = Hops.on(node, :start, [retry])
    {:ok, near: near, far: far, there: elem(far, 1)}
  end

  test "a deadline goes along to another node as what is left of it", %{near: near, there: there} do
    assert Hops.on(near, :left_there, [60_000, there]) in 1..60_000
    assert Hops.on(near, :left_there, [0, there]) == 0
    assert Hops.on(near, :left_there, [:infinity, there]) == :infinity
  end

  test "a call on another node works under the deadline of the call that makes it", %{near: near, there: there} do
    assert {:left, ms} = Hops.on(near, :call_there, [[deadline: 60_000], there])
    assert ms in 1..60_000
    assert Hops.on(near, :call_there, [[], there]) == {:left, :infinity}
  end

  test "a call on another node is skipped when nothing is left", %{near: near, there: there} do
    assert {:error, %DeadlineExceeded{} = error} = Hops.on(near, :skip_there, [there])
    assert error.context.skipped
    refute DeadlineExceeded.retryable?(error)
  end

  test "retries do not multiply over a hop where the error says that they do not help", %{
    near: near,
    far: far,
    there: there
  } do
    assert {:error, %RetriesExhausted{} = error} = Hops.on(near, :fail_there, [there])
    assert error.context.attempts == 4
    assert Hops.on(far, :failures, []) == 4
  end
end
