# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.MoleculerTest do
  # What users of Moleculer's fault tolerance rely on, said in the terms of this library.
  use ExternalService.Case, async: false

  alias ExternalService.{AttemptTimeout, Deadline, DeadlineExceeded}

  # Moleculer's retry policy: retries 5, delay 100, maxDelay 1000, factor 2.
  @policy [base: 100, cap: 1_000, multiplier: 2, max_attempts: 6]

  describe "retries" do
    test "that are off leave the call as it is", %{service: s} do
      start_recording(s, retry: [max_attempts: 1])
      assert ExternalService.call(s, attempting({:error, :as_it_is})) == {:error, :as_it_is}
      assert {attempts(), slept()} == {1, []}
    end

    test "wait 100, 200, 400, 800 and then 1000 ms", %{service: s} do
      start_recording(s, retry: @policy)
      ExternalService.call(s, attempting(:retry))
      assert {attempts(), slept()} == {6, [100, 200, 400, 800, 1_000]}
    end

    test "of three are four attempts, each told as a retry event", %{service: s} do
      start_recording(s, retry: Keyword.put(@policy, :max_attempts, 4))
      Recorder.attach(s, [[:call, :retry]])
      ExternalService.call(s, attempting(:retry))
      assert {attempts(), slept(), length(Recorder.events())} == {4, [100, 200, 400], 4}
    end

    test "that are used up give the last error as it was, without another delay", %{service: s} do
      start_recording(s, retry: [max_attempts: 2, base: 1, retry_exceptions: [KeyError]])
      error = %KeyError{key: :mine}
      assert raised(fn -> ExternalService.call(s, fn -> raise error end) end) == error
      assert slept() == [1]
    end

    test "are not made for an error that the check refuses, nor told", %{service: s} do
      start_recording(s, retry: [retry_on: &match?({:error, code} when code >= 500, &1)] ++ @policy)
      Recorder.attach(s, [[:call, :retry]])
      assert ExternalService.call(s, attempting({:error, 404})) == {:error, 404}
      assert {attempts(), slept(), Recorder.events()} == {1, [], []}
      ExternalService.call(s, attempting({:error, 500}))
      assert attempts() == 6
    end

    test "can be set to none for one call", %{service: s} do
      start_recording(s, retry: @policy)
      ExternalService.call(s, [max_attempts: 1], attempting(:retry))
      assert attempts() == 1
    end
  end

  describe "a request timeout" do
    setup do
      before = Application.get_env(:external_service, :defaults)

      on_exit(fn ->
        if before,
          do: Application.put_env(:external_service, :defaults, before),
          else: Application.delete_env(:external_service, :defaults)
      end)
    end

    # How long an attempt of the service has, on the virtual clock.
    defp timeout_of(service, options, own) do
      clock = start_on_clock(service, [retry: [max_attempts: 1]] ++ options)
      late = fn -> VirtualClock.advance(clock, 1_000_000) end

      case ExternalService.call(service, own, late) do
        {:error, %AttemptTimeout{context: context}} -> context.timeout
        :ok -> :none
      end
    end

    test "is none by default, and the attempt runs where the call is made", %{service: s} do
      assert timeout_of(s, [], []) == :none
      assert ExternalService.call(s, &self/0) == self()
    end

    test "of the application holds for every service, one of the service goes before it, one of the call first", %{
      service: s
    } do
      Application.put_env(:external_service, :defaults, timeout: 5_000)
      assert timeout_of(s, [], []) == 5_000
      assert timeout_of(s, [timeout: 4_000], []) == 4_000
      assert timeout_of(s, [timeout: 4_000], timeout: 2_000) == 2_000
      assert timeout_of(s, [timeout: 4_000], timeout: :infinity) == :none
    end

    test "is a new one for each attempt, and counts for the breaker", %{service: s} do
      clock = start_on_clock(s, timeout: 100, retry: [base: 10, max_attempts: 3])
      late = attempting(fn -> VirtualClock.advance(clock, 150) end, clock)
      assert {:error, %AttemptTimeout{}} = ExternalService.call(s, late)
      assert attempt_times() == [0, 160, 330]
      assert ExternalService.counts(s).failures == 3
    end

    test "leaves other errors untouched", %{service: s} do
      ExternalService.start(s, timeout: 60_000)
      assert raised(fn -> ExternalService.call(s, fn -> raise KeyError, key: :mine end) end) == %KeyError{key: :mine}
      assert ExternalService.call(s, fn -> {:error, :mine} end) == {:error, :mine}
    end

    test "of a whole call is less for a call inside by what has passed, and nothing is done when nothing is left", %{
      service: s
    } do
      clock = start_on_clock(s)
      inside = fn -> ExternalService.call(s, [deadline: 5_000], &Deadline.remaining/0) end
      assert ExternalService.call(s, [deadline: 1_000], fn -> VirtualClock.advance(clock, 300) && inside.() end) == 700

      skipped =
        ExternalService.call(s, [deadline: 1_000], fn -> VirtualClock.advance(clock, 1_000) && {:inside, inside.()} end)

      assert {:inside, {:error, %DeadlineExceeded{context: %{skipped: true}}}} = skipped
    end

    test "and a fallback of the application are there for every service", %{service: s} do
      Application.put_env(:external_service, :defaults, fallback: {:value, :of_all})
      start_recording(s)
      assert ExternalService.call(s, fn -> :retry end) == :of_all
    end
  end

  describe "several nodes" do
    defp start_nodes(s, nodes, options \\ []),
      do: start_recording(s, [endpoints: nodes, circuit_breaker: [tolerate: 0]] ++ options)

    defp tried(s, nodes, attempts) do
      start_recording(s, endpoints: nodes, circuit_breaker: [tolerate: 100], retry: [max_attempts: attempts, base: 1])
      test = self()
      ExternalService.call(s, fn node -> send(test, {:tried, node}) && :retry end)
      for _ <- 1..attempts, do: assert_received({:tried, _}) |> elem(1)
    end

    test "take turns in retries: two alternate, three go round", %{service: s} do
      assert [a, b, _, _] = tried(s, [:broker_1, :broker_2], 4)
      assert Enum.sort([a, b]) == [:broker_1, :broker_2]

      assert s |> tried([:caller, :broker_1, :broker_2], 4) |> Enum.take(3) |> Enum.sort() == [
               :broker_1,
               :broker_2,
               :caller
             ]
    end

    test "can not be none", %{service: s} do
      assert %ValidationError{} = raised(fn -> start_nodes(s, []) end)
    end

    test "of which there is only one are that one, and none while it is out", %{service: s} do
      start_nodes(s, [:only], max_ejected: 1.0)
      assert ExternalService.call(s, & &1) == :only
      ExternalService.call(s, [max_attempts: 1], fn _node -> :retry end)
      assert {:error, %ExternalService.NoEndpoint{}} = ExternalService.call(s, & &1)
    end

    test "are called in turn, without those that are out, and none when none is in", %{service: s} do
      start_nodes(s, [:a, :b, :c], max_ejected: 1.0)
      assert for(_ <- 1..4, do: ExternalService.call(s, & &1)) == [:a, :b, :c, :a]
      for node <- [:a, :b], do: ExternalService.open({s, node})
      assert for(_ <- 1..4, do: ExternalService.call(s, & &1)) == [:c, :c, :c, :c]
      ExternalService.open({s, :c})
      assert {:error, %ExternalService.NoEndpoint{} = error} = ExternalService.call(s, & &1)
      assert ExternalService.NoEndpoint.retryable?(error)
    end

    test "that a call names are called, or the call is refused", %{service: s} do
      start_nodes(s, [:a, :b])
      assert ExternalService.call(s, [endpoint: :b], & &1) == :b
      ExternalService.open({s, :b})
      assert {:error, %CircuitBreakerOpen{}} = ExternalService.call(s, [endpoint: :b], & &1)
    end

    test "that are told again are not doubled, and keep their breakers", %{service: s} do
      start_nodes(s, [:a, :b])
      ExternalService.open({s, :a})
      ExternalService.put_endpoints(s, [:a, {:b, weight: 2}])
      assert for(node <- ExternalService.endpoints(s), do: {node.endpoint, node.state}) == [a: :forced_open, b: :closed]
    end

    test "with the lowest latency are called first", %{service: s} do
      clock = start_on_clock(s, endpoints: [:slow, :fast], balancer: :least_busy)

      for {node, ms} <- [slow: 50, fast: 5],
          do: ExternalService.call(s, [endpoint: node], fn _ -> VirtualClock.advance(clock, ms) end)

      assert for(_ <- 1..3, do: ExternalService.call(s, & &1)) == [:fast, :fast, :fast]
    end

    test "of shards keep their keys, and one that is out gives them to the next instead of an error", %{service: s} do
      start_nodes(s, [:a, :b, :c], balancer: {:hash, & &1.user})
      at = fn user -> ExternalService.call(s, [key: %{user: user}], & &1) end
      home = at.(7)
      assert for(_ <- 1..5, do: at.(7)) |> Enum.uniq() == [home]
      ExternalService.open({s, home})
      assert [next] = Enum.uniq(for(_ <- 1..5, do: at.(7)))
      assert next in ([:a, :b, :c] -- [home])
      ExternalService.close({s, home})
      assert at.(7) == home
    end
  end
end
