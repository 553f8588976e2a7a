# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.EndpointsTest do
  use ExternalService.Case, async: true

  import ExternalService.Callers, except: [start_limited: 2]

  alias ExternalService.{AttemptTimeout, Concurrency, DeadlineExceeded, NoEndpoint, ServiceSaturated}

  doctest ExternalService.Endpoints

  # Right after it has refused somebody a hand comes and closes it, or opens it for a second.
  defmodule HandAfterRefusal do
    alias ExternalService.CircuitBreaker.Local

    def install(service, options) do
      {hand, options} = Keyword.pop!(options, :hand)
      with {:ok, breaker} <- Local.install(service, options), do: {:ok, {hand, breaker}}
    end

    def admit(service, {hand, breaker}) do
      with {:open, _retry_after} = refusal <- Local.admit(service, breaker) do
        if hand == :close, do: Local.close(service, breaker), else: Local.open(service, breaker, for: 1_000)
        refusal
      end
    end

    def open(service, {_hand, breaker}, options), do: Local.open(service, breaker, options)
    def look(service, {_hand, breaker}), do: Local.look(service, breaker)
    def remove(service, {_hand, breaker}), do: Local.remove(service, breaker)
    def report(_service, _config, _permit, _outcome, _duration), do: :ok
  end

  @breaker [tolerate: 0, reset: 60_000]
  @abc [endpoints: [:a, :b, :c], circuit_breaker: @breaker]

  # A call without retries that says where it went.
  defp went(s, options \\ []), do: ExternalService.call(s, [max_attempts: 1] ++ options, & &1)
  defp went_to(s, count, options \\ []), do: Enum.map(1..count, fn _ -> went(s, options) end)
  defp frequencies(s, count, options \\ []), do: s |> went_to(count, options) |> Enum.frequencies()

  defp fail_at(s, endpoint),
    do:
      {:error, %RetriesExhausted{}} = ExternalService.call(s, [max_attempts: 1, endpoint: endpoint], fn _ -> :retry end)

  defp of(s, endpoint), do: Enum.find(ExternalService.endpoints(s), &(&1.endpoint == endpoint))
  defp draining(s), do: for(%{endpoint: endpoint, draining: true} <- ExternalService.endpoints(s), do: endpoint)
  defp states(s), do: for(%{endpoint: endpoint, state: state} <- ExternalService.endpoints(s), do: {endpoint, state})

  # A process inside a call at the endpoint it then tells.
  defp held(s, options \\ []) do
    test = self()

    pid =
      spawn(fn ->
        ExternalService.call(s, [max_attempts: 1] ++ options, fn endpoint ->
          send(test, {:at, self(), endpoint})
          receive do: (:go -> send(test, {:back, self()}))
        end)
      end)

    assert_receive {:at, _inside, endpoint}, 10_000
    {pid, endpoint}
  end

  describe "a call" do
    test "gives the function its endpoint, any term", %{service: s} do
      for endpoint <- ["a", {:host, 80}, nil, %{url: "x"}, [weight: 1], ~c"chars"] do
        assert ExternalService.start(s, endpoints: [endpoint]) == :ok
        assert went(s) == endpoint
        assert ExternalService.call!(s, &{:at, &1}) == {:at, endpoint}
      end
    end

    test "may have a function of no argument, too", %{service: s} do
      start_on_clock(s, @abc)
      assert ExternalService.call(s, fn -> :done end) == :done
    end

    test "goes round by weight", %{service: s} do
      start_on_clock(s, endpoints: [:a, {:b, weight: 3}, {:c, weight: 6}])
      assert frequencies(s, 100) == %{a: 10, b: 30, c: 60}
      start_on_clock(s, endpoints: [:a, {:b, weight: 3}], balancer: :random)
      assert_in_delta frequencies(s, 4_000)[:b], 3_000, 120
    end

    test "can be pinned to an endpoint, and its retries with it", %{service: s} do
      start_on_clock(s, @abc ++ [retry: [max_attempts: 3]])
      assert frequencies(s, 20, endpoint: :b) == %{b: 20}
      start_on_clock(s, endpoints: [:a, :b])
      assert {:error, error} = ExternalService.call(s, [endpoint: :b], &{:retry, &1})
      assert %{endpoint: :b, reason: :b, attempts: 5} = error.context
    end

    test "that is pinned to one that is open, or draining, is refused", %{service: s} do
      start_on_clock(s, @abc)
      fail_at(s, :b)
      assert {:error, %CircuitBreakerOpen{context: %{service: ^s, retry_after: 60_000}}} = went(s, endpoint: :b)
      ExternalService.drain(s, :c)
      assert {:error, %NoEndpoint{context: %{retry_after: :infinity}}} = went(s, endpoint: :c)
    end

    test "tells in its error where its last attempt went", %{service: s} do
      clock = start_on_clock(s, endpoints: [:a], circuit_breaker: [tolerate: 100], retry: [max_attempts: 2])

      assert {:error, %RetriesExhausted{context: %{endpoint: :a, service: ^s}}} =
               ExternalService.call(s, fn _ -> :retry end)

      slow = fn _ -> VirtualClock.advance(clock, 100) end
      assert {:error, %AttemptTimeout{context: timed_out}} = ExternalService.call(s, [timeout: 50], slow)
      assert %{endpoint: :a, service: ^s, attempts: 2} = timed_out
      assert {:error, %DeadlineExceeded{context: %{endpoint: :a}}} = ExternalService.call(s, [deadline: 50], slow)
    end

    test "hands its fallback the endpoint as the argument its function got", %{service: s} do
      start_on_clock(s, endpoints: [:a], fallback: fn _error, context -> {:instead, context.arguments} end)
      assert ExternalService.call(s, [max_attempts: 1], fn _ -> :retry end) == {:instead, [:a]}
    end

    test "that raises is no failure, and one that retries the exception is", %{service: s} do
      start_on_clock(s, @abc)
      assert raised(fn -> ExternalService.call(s, fn _ -> raise KeyError, key: 1 end) end) == %KeyError{key: 1}
      assert states(s) == [a: :closed, b: :closed, c: :closed]
      retry = [retry_exceptions: [KeyError], max_attempts: 2]
      raised(fn -> ExternalService.call(s, retry, fn _ -> raise KeyError, key: 1 end) end)
      assert Enum.count(states(s), &match?({_, :open}, &1)) == 2
    end

    test "is counted as one of the service, its breaker's changes as the endpoint's", %{service: s} do
      start_on_clock(s, endpoints: [:a], circuit_breaker: @breaker)
      Recorder.attach(s)
      Recorder.attach({s, :a})
      ExternalService.call(s, [max_attempts: 1], fn _ -> :retry end)
      told = for {name, _measurements, %{service: service}} <- Recorder.events(), do: {List.last(name), service == s}
      assert told == [start: true, retry: true, opened: false, stop: true]
    end
  end

  describe "a retry" do
    test "goes to an endpoint that the call has not tried yet, while there is one", %{service: s} do
      for balancer <- [:round_robin, :random, :least_busy, {:hash, & &1}] do
        start_recording(s, endpoints: [:a, :b, :c], balancer: balancer, circuit_breaker: [tolerate: 1_000])
        pid = self()

        for key <- 1..20 do
          ExternalService.call(s, [key: key, max_attempts: 4], fn at -> send(pid, {:tried, at}) && :retry end)
          tried = for _ <- 1..4, do: assert_received({:tried, _}) |> elem(1)
          assert tried |> Enum.take(3) |> Enum.sort() == [:a, :b, :c]
        end
      end
    end

    test "remembers what it tried when the list changes meanwhile", %{service: s} do
      sleep = fn _ms -> ExternalService.put_endpoints(s, [:c, :b, :a]) end
      ExternalService.start(s, endpoints: [:a, :b, :c], sleep_function: sleep, circuit_breaker: [tolerate: 1_000])
      pid = self()

      for _ <- 1..10 do
        ExternalService.put_endpoints(s, [:a, :b, :c])
        ExternalService.call(s, [max_attempts: 3], fn at -> send(pid, {:tried, at}) && :retry end)
        tried = for _ <- 1..3, do: assert_received({:tried, _}) |> elem(1)
        assert Enum.sort(tried) == [:a, :b, :c]
      end
    end

    test "of a service that was started without endpoints meanwhile stays with that one", %{service: s} do
      start_on_clock(s, @abc ++ [retry: [base: 1]])

      attempt =
        attempting_each([
          fn -> ExternalService.start(s, circuit_breaker: [tolerate: 100], retry: [base: 1]) && :retry end,
          :retry,
          :retry,
          :retry
        ])

      assert {:error, %RetriesExhausted{context: context}} = ExternalService.call(s, [max_attempts: 4], attempt)
      refute Map.has_key?(context, :endpoint)
      assert ExternalService.counts(s).failures == 3
    end

    test "to an endpoint that is pinned and has gone meanwhile is refused", %{service: s} do
      sleep = fn _ms -> ExternalService.put_endpoints(s, [:b]) end
      ExternalService.start(s, endpoints: [:a, :b], sleep_function: sleep)

      assert {:error, %NoEndpoint{context: %{endpoints: [:b]}}} =
               ExternalService.call(s, [endpoint: :a], fn _ -> :retry end)
    end
  end

  describe "shares" do
    alias ExternalService.Native

    @weights [1, 2, 3, 10, 4]

    defp members, do: for({weight, id} <- Enum.with_index(@weights, 1), do: {Native.endpoint_new(), id, weight})

    for rule <- [:round_robin, :random, :least_busy] do
      test "of #{rule} are within 2 % of the weights over 100,000 picks" do
        table = Native.balancer_new(unquote(rule), members(), 500_000, Native.clock_new(3))
        picks = Enum.frequencies(for _ <- 1..100_000, do: Native.balancer_pick(table, 0, []))

        for {weight, index} <- Enum.with_index(@weights),
            do: assert_in_delta(picks[index] / 100_000, weight / Enum.sum(@weights), 0.02)
      end
    end

    test "of a ring are near the weights, and a key that no list moved stays where it was" do
      members = members()
      table = Native.balancer_new(:hash, members, 500_000, nil)
      keys = Enum.map(1..50_000, &{&1, Native.balancer_pick(table, &1, [])})
      shares = keys |> Enum.map(&elem(&1, 1)) |> Enum.frequencies()

      for {weight, index} <- Enum.with_index(@weights),
          do: assert_in_delta(shares[index] / 50_000, weight / Enum.sum(@weights), 0.05)

      for {key, index} <- keys, do: assert(Native.balancer_pick(table, key, []) == index)
    end
  end

  describe "a hash balancer" do
    @ten Enum.map(0..9, &"host#{&1}")
    @keys 1..3_000

    defp placed(s), do: Map.new(@keys, &{&1, went(s, key: &1)})

    defp start_ring(s, endpoints),
      do: start_on_clock(s, endpoints: endpoints, balancer: {:hash, &{:user, &1}}, circuit_breaker: @breaker)

    test "keeps a key at one endpoint, over restarts and whatever the order of the list", %{service: s} do
      start_ring(s, @ten)
      before = placed(s)
      assert before |> Map.values() |> Enum.uniq() |> length() == 10
      start_ring(s, Enum.reverse(@ten))
      assert placed(s) == before
    end

    test "moves at most 1/n + 5 % of the keys when one leaves: its own", %{service: s} do
      start_ring(s, @ten)
      before = placed(s)
      ExternalService.put_endpoints(s, @ten -- ["host3"])
      moved = for {key, host} <- placed(s), before[key] != host, do: before[key]
      assert Enum.uniq(moved) == ["host3"]
      assert length(moved) / Enum.count(@keys) <= 0.15
    end

    test "goes to the next on the ring while its own is out, and back", %{service: s} do
      clock = start_ring(s, @ten)
      before = placed(s)
      fail_at(s, "host3")
      during = placed(s)
      moved = for {key, host} <- during, before[key] != host, do: key
      assert Enum.sort(moved) == Enum.sort(for({key, "host3"} <- before, do: key))
      assert moved |> Enum.map(&during[&1]) |> Enum.uniq() |> length() > 3
      assert placed(s) == during
      VirtualClock.advance(clock, 60_000)
      assert placed(s) == before
    end

    test "takes any endpoint for a call without a key, and asks a function of no argument otherwise", %{service: s} do
      start_on_clock(s, endpoints: @ten, balancer: {:hash, & &1})
      assert map_size(frequencies(s, 500)) == 10
      start_on_clock(s, endpoints: @ten, balancer: {:hash, fn -> Process.get(:tenant) end})
      for tenant <- 1..5, do: Process.put(:tenant, tenant) && assert(map_size(frequencies(s, 20)) == 1)
    end
  end

  describe "least_busy" do
    test "goes where the fewest calls are in flight, for the weights", %{service: s} do
      start_on_clock(s, endpoints: [:a, :b, {:c, weight: 2}], balancer: :least_busy)
      assert Enum.frequencies(for _ <- 1..8, do: elem(held(s), 1)) == %{a: 2, b: 2, c: 4}
      assert for(%{in_flight: in_flight} <- ExternalService.endpoints(s), do: in_flight) == [2, 2, 4]
    end

    test "counts down for callers that end, raise or are killed", %{service: s} do
      start_on_clock(s, endpoints: [:a, :b], balancer: :least_busy)
      {first, _} = held(s, endpoint: :a)
      {second, _} = held(s, endpoint: :a)
      assert frequencies(s, 20) == %{b: 20}
      kill(first)
      soon(fn -> of(s, :a).in_flight == 1 end)
      send(second, :go)
      soon(fn -> of(s, :a).in_flight == 0 end)
      catch_error(ExternalService.call(s, [endpoint: :a], fn _ -> raise "oops" end))
      assert of(s, :a).in_flight == 0
    end

    test "goes where calls take least, when as many are in flight", %{service: s} do
      clock = start_on_clock(s, endpoints: [:a, :b, :c], balancer: :least_busy)

      for {endpoint, ms} <- [a: 30, b: 10, c: 20],
          do: ExternalService.call(s, [endpoint: endpoint], fn _ -> VirtualClock.advance(clock, ms) end)

      assert for(%{latency: latency} <- ExternalService.endpoints(s), do: latency) == [30.0, 10.0, 20.0]
      assert frequencies(s, 5) == %{b: 5}
    end

    test "counts within the service's own limit, too, and times out like any", %{service: s} do
      start_on_clock(s, endpoints: [:a, :b], balancer: :least_busy, concurrency: [limit: 2])
      assert Enum.sort(for _ <- 1..2, do: elem(held(s), 1)) == [:a, :b]
      assert {:error, %ServiceSaturated{context: %{service: ^s, limit: 2}}} = went(s)
      assert {:error, %ServiceSaturated{}} = ExternalService.call({s, :a}, fn _ -> :in end)
      assert {Concurrency.in_flight(s), Concurrency.limit(s)} == {2, 2}
      clock = start_on_clock(s, endpoints: [:a], balancer: :least_busy, circuit_breaker: @breaker)
      slow = fn _ -> VirtualClock.advance(clock, 20) end
      assert {:error, %AttemptTimeout{}} = ExternalService.call(s, [timeout: 1, max_attempts: 1], slow)
      soon(fn -> of(s, :a).in_flight == 0 end)
    end
  end

  describe "an endpoint whose breaker is open" do
    test "is skipped, and gets its probe by ordinary traffic when its time has come", %{service: s} do
      clock = start_on_clock(s, Keyword.put(@abc, :circuit_breaker, @breaker ++ [half_open: true]))
      fail_at(s, :b)
      assert went_to(s, 30) |> Enum.uniq() |> Enum.sort() == [:a, :c]
      assert %{state: :open, retry_after: 60_000, out_for: 60_000, failures: 1} = of(s, :b)
      VirtualClock.advance(clock, 59_999)
      assert :b not in went_to(s, 30)
      VirtualClock.advance(clock, 1)
      assert of(s, :b).state == :half_open
      assert Enum.count(went_to(s, 30), &(&1 == :b)) in 9..11
      assert of(s, :b).state == :closed
    end

    test "gets one probe at a time, and the next when that one failed or its process died", %{service: s} do
      clock = start_on_clock(s, endpoints: [:a, :b], circuit_breaker: @breaker ++ [half_open: true])
      fail_at(s, :b)
      VirtualClock.advance(clock, 60_000)
      {probe, :b} = Enum.find_value(1..4, fn _ -> with({_, :b} = held <- held(s), do: held, else: (_ -> nil)) end)
      assert frequencies(s, 10) == %{a: 10}
      kill(probe)
      soon(fn -> :b in went_to(s, 4) end)
      assert of(s, :b).state == :closed
    end

    test "that failed its probe is out again", %{service: s} do
      clock = start_on_clock(s, endpoints: [:a, :b], circuit_breaker: @breaker ++ [half_open: true])
      fail_at(s, :b)
      VirtualClock.advance(clock, 60_000)
      for _ <- 1..4, do: ExternalService.call(s, [max_attempts: 1], &if(&1 == :b, do: :retry, else: &1))
      assert frequencies(s, 10) == %{a: 10}
      assert %{state: :open, out_for: 60_000} = of(s, :b)
    end

    test "comes back little by little with ramp_up", %{service: s} do
      clock = start_on_clock(s, endpoints: [:a, :b], circuit_breaker: @breaker ++ [ramp_up: 10_000])
      fail_at(s, :b)
      VirtualClock.advance(clock, 60_000)
      share = fn -> Map.get(frequencies(s, 1_000), :b, 0) / 1_000 end
      at_first = share.()
      VirtualClock.advance(clock, 5_000)
      halfway = share.()
      VirtualClock.advance(clock, 5_000)
      assert share.() == 0.5
      assert at_first > 0.0 and at_first < 0.15
      assert halfway > at_first and halfway < 0.45
    end

    test "is out at most with the share that max_ejected says", %{service: s} do
      for {max, out} <- [{0.5, 1}, {0.67, 2}, {1 / 3, 1}, {2 / 3, 2}, {0.0, 0}, {0.3, 0}] do
        start_on_clock(s, @abc ++ [max_ejected: max])
        for endpoint <- [:a, :b, :c], do: fail_at(s, endpoint)
        assert {max, map_size(frequencies(s, 60))} == {max, 3 - out}
        assert Enum.count(ExternalService.endpoints(s), &(&1.out_for > 0)) == out
        assert ExternalService.available?(s)
      end
    end

    test "counts as out while its probe is under way, but only as many do as max_ejected says", %{service: s} do
      for {max, limit} <- [{0.5, :some}, {1.0, :none}] do
        breaker = [half_open: true] ++ @breaker
        clock = start_on_clock(s, endpoints: [:a, :b], circuit_breaker: breaker, max_ejected: max)
        for endpoint <- [:a, :b], do: fail_at(s, endpoint)
        went_to(s, 4)
        VirtualClock.advance(clock, 60_000)
        probes = for endpoint <- [:a, :b], do: held(s, endpoint: endpoint)
        assert ExternalService.available?(s) == (limit == :some)
        if limit == :some, do: assert(went(s) in [:a, :b]), else: assert({:error, %NoEndpoint{}} = went(s))
        assert states(s) == [a: :half_open, b: :half_open]
        for {pid, _at} <- probes, do: send(pid, :go)
        soon(fn -> states(s) == [a: :closed, b: :closed] end)
        ExternalService.stop(s)
      end
    end

    test "and alone stays in, unless max_ejected says all", %{service: s} do
      start_on_clock(s, endpoints: [:a], circuit_breaker: @breaker)
      fail_at(s, :a)
      assert went(s) == :a
      assert ExternalService.available?(s) and not ExternalService.blown?(s)
      assert ExternalService.state(s) == :closed

      start_on_clock(s, endpoints: [:a], circuit_breaker: @breaker, max_ejected: 1.0)
      fail_at(s, :a)
      assert {:error, %NoEndpoint{}} = went(s)
      refute ExternalService.available?(s)
      assert ExternalService.state(s) == :open
    end

    test "of a backend that has only the required callbacks is skipped, too", %{service: s} do
      switch = StandIn.switch()
      backend = [backend: StandIn.backend(blown: switch)]
      start_on_clock(s, endpoints: [:a, {:b, circuit_breaker: backend}], circuit_breaker: @breaker)
      assert_received {:installed, {^s, :b}, _options}
      assert frequencies(s, 10) == %{a: 5, b: 5}
      StandIn.blow(switch)
      assert frequencies(s, 10) == %{a: 10}
      assert %{state: :open, retry_after: nil} = of(s, :b)
      assert ExternalService.open({s, :b}, []) == {:error, :not_found}
      assert ExternalService.CircuitBreaker.reset({s, :b}) == :ok
      assert frequencies(s, 10) == %{a: 5, b: 5}
      ExternalService.call(s, [max_attempts: 1, endpoint: :b], fn _ -> :retry end)
      assert StandIn.count(:melt) == 1
      ExternalService.stop(s)
      assert StandIn.count(:remove) == 1
    end
  end

  describe "when no endpoint can be called" do
    setup %{service: s} do
      clock = start_on_clock(s, @abc ++ [max_ejected: 1.0])
      for endpoint <- [:a, :b, :c], do: fail_at(s, endpoint) && VirtualClock.advance(clock, 1_000)
      {:ok, clock: clock}
    end

    test "a call is refused until the soonest is back", %{service: s, clock: clock} do
      assert {:error, %NoEndpoint{context: context}} = went(s)
      assert context == %{service: s, retry_after: 57_000, endpoints: [:a, :b, :c]}
      assert %NoEndpoint{} = raised(fn -> ExternalService.call!(s, & &1) end)
      assert {ExternalService.state(s), ExternalService.available?(s)} == {:open, false}
      assert ExternalService.counts(s).retry_after == 57_000
      VirtualClock.advance(clock, 57_000)
      assert {went(s), ExternalService.state(s)} == {:a, :closed}
    end

    test "its fallback runs", %{service: s} do
      assert went(s, fallback: fn %NoEndpoint{} -> :instead end) == :instead
      assert went(s, fallback: [{NoEndpoint, {:value, :listed}}]) == :listed
    end

    test "the refusal is told", %{service: s} do
      Recorder.attach(s, [[:circuit_breaker, :blown]])
      went(s)
      assert Recorder.names() == [[:circuit_breaker, :blown]]
    end

    test "a reset of the service lets all in", %{service: s} do
      went(s)
      assert ExternalService.CircuitBreaker.reset(s) == :ok
      assert frequencies(s, 9) == %{a: 3, b: 3, c: 3}
    end
  end

  describe "{service, endpoint}" do
    test "is the service there: state, counts, calls", %{service: s} do
      start_on_clock(s, @abc)
      assert ExternalService.call({s, :b}, & &1) == :b
      fail({s, :b})
      assert states(s) == [a: :closed, b: :open, c: :closed]
      assert {ExternalService.state({s, :a}), ExternalService.state({s, :b})} == {:closed, :open}
      assert {ExternalService.counts({s, :b}).failures, ExternalService.counts({s, :a}).failures} == {1, 0}
      assert {:error, %CircuitBreakerOpen{context: %{service: {^s, :b}}}} = fail({s, :b})
      refute ExternalService.available?({s, :b})
      assert ExternalService.state({s, :z}) == {:error, :not_found}
      assert {:error, %ServiceNotStarted{}} = ExternalService.call({s, :z}, & &1)
    end

    test "is opened, closed, bypassed and reset by hand, and traffic follows at once", %{service: s} do
      start_on_clock(s, @abc ++ [max_ejected: 0.5])

      for undo <- [&ExternalService.close/1, &ExternalService.bypass/1, &CircuitBreaker.reset/1] do
        assert ExternalService.open({s, :b}, reason: :update) == :ok
        assert of(s, :b).state == :forced_open
        assert :b not in went_to(s, 12)
        assert %{reason: :update} = ExternalService.counts({s, :b})
        if undo == (&CircuitBreaker.reset/1), do: ExternalService.close({s, :b})
        assert undo.({s, :b}) == :ok
        assert Enum.count(went_to(s, 12), &(&1 == :b)) == 4
        ExternalService.close({s, :b})
      end
    end

    test "that a hand has opened gets no calls, however many are out", %{service: s} do
      clock = start_on_clock(s, @abc)
      for endpoint <- [:a, :b], do: ExternalService.open({s, endpoint}, for: 9_000)
      assert frequencies(s, 20) == %{c: 20}
      ExternalService.open({s, :c}, for: 5_000)
      assert {:error, %NoEndpoint{context: %{retry_after: 5_000}}} = went(s)
      assert ExternalService.state(s) == :open
      VirtualClock.advance(clock, 5_000)
      assert frequencies(s, 20) == %{c: 20}
    end

    test "that a hand opens again for a shorter time is back when that is over", %{service: s} do
      clock = start_on_clock(s, @abc)
      ExternalService.open({s, :b}, reason: :update)
      assert :b not in went_to(s, 12)
      ExternalService.open({s, :b}, for: 1_000)
      assert :b not in went_to(s, 12)
      VirtualClock.advance(clock, 1_000)
      assert frequencies(s, 12) == %{a: 4, b: 4, c: 4}
    end

    test "that a hand changes while it refuses a call is out no longer than the hand says", %{service: s} do
      for {hand, then} <- [{:close, 0}, {:open, 1_000}] do
        backend = {HandAfterRefusal, hand: hand}
        clock = start_on_clock(s, endpoints: [:a, {:b, circuit_breaker: [backend: backend]}], circuit_breaker: @breaker)
        ExternalService.open({s, :b}, reason: :update)
        assert :b not in went_to(s, 2)
        VirtualClock.advance(clock, then)
        assert frequencies(s, 12) == %{a: 6, b: 6}
        ExternalService.stop(s)
      end
    end

    test "has permits of its own, for calls made outside", %{service: s} do
      start_on_clock(s, @abc)
      {:ok, permit} = CircuitBreaker.admit({s, :a})
      assert CircuitBreaker.report(permit, :failure) == :ok
      assert states(s) == [a: :open, b: :closed, c: :closed]
      assert CircuitBreaker.melt({s, :b}) == :ok
      assert states(s) == [a: :open, b: :open, c: :closed]
    end
  end

  describe "the whole service" do
    test "is opened and closed by hand, whatever its endpoints are", %{service: s} do
      start_on_clock(s, @abc)
      ExternalService.open(s, reason: :deploy)
      assert {:error, %CircuitBreakerOpen{context: %{service: ^s}}} = went(s)
      assert {ExternalService.state(s), states(s)} == {:forced_open, [a: :closed, b: :closed, c: :closed]}
      ExternalService.close(s)
      assert map_size(frequencies(s, 6)) == 3
    end

    test "counts what its endpoints count", %{service: s} do
      start_on_clock(s, endpoints: [:a, :b], circuit_breaker: [failure_rate: 0.9, min_calls: 10])
      for endpoint <- [:a, :b, :b], do: fail_at(s, endpoint)
      went_to(s, 4)
      assert %{calls: 7, failures: 3, successes: 4, state: :closed} = ExternalService.counts(s)
    end

    test "is stopped with all of them", %{service: s} do
      start_on_clock(s, @abc)
      ExternalService.stop(s)
      assert ExternalService.endpoints(s) == {:error, :not_found}
      assert ExternalService.state({s, :a}) == {:error, :not_found}
      assert ExternalService.drain(s, :a) == {:error, :not_found}
    end
  end

  describe "put_endpoints/2" do
    test "keeps what is known of those that stay, drops those that leave and takes in the new", %{service: s} do
      clock = start_on_clock(s, @abc)
      Recorder.attach({s, :a}, [[:circuit_breaker, :closed]])
      for endpoint <- [:a, :b], do: fail_at(s, endpoint)
      VirtualClock.advance(clock, 1_000)
      assert ExternalService.put_endpoints(s, [:d, {:b, weight: 2}, :c]) == :ok
      assert states(s) == [d: :closed, b: :open, c: :closed]
      assert %{retry_after: 59_000, failures: 1, weight: 2} = of(s, :b)
      assert ExternalService.state({s, :a}) == {:error, :not_found}
      assert Recorder.names() == [[:circuit_breaker, :closed]]
      assert Enum.sort(Map.keys(frequencies(s, 10))) == [:c, :d]
      ExternalService.put_endpoints(s, [:a, :b])
      assert states(s) == [a: :closed, b: :open]
    end

    test "lets calls in flight at those that leave go on", %{service: s} do
      start_on_clock(s, endpoints: [:a], balancer: :least_busy)
      {pid, :a} = held(s)
      ExternalService.put_endpoints(s, [:b])
      assert went(s) == :b
      send(pid, :go)
      assert_receive {:back, ^pid}, 10_000
    end

    test "calls a function that gives the list, and nothing else does", %{service: s} do
      calls = :counters.new(1, [])
      list = fn -> :counters.add(calls, 1, 1) && [:a, :"n#{:counters.get(calls, 1)}"] end
      start_on_clock(s, endpoints: list)
      assert states(s) == [a: :closed, n1: :closed]
      went_to(s, 10)
      ExternalService.reconfigure(s, timeout: 5_000)
      assert states(s) == [a: :closed, n1: :closed]
      ExternalService.put_endpoints(s, list)
      assert states(s) == [a: :closed, n2: :closed]
    end

    test "of a service that has none, or is not there, is refused", %{service: s} do
      assert_raise ServiceNotStarted, fn -> ExternalService.put_endpoints(s, [:a]) end
      ExternalService.start(s)
      assert_raise ArgumentError, ~r/without endpoints/, fn -> ExternalService.put_endpoints(s, [:a]) end
      assert ExternalService.endpoints(s) == {:error, :not_found}
    end

    test "that can not be changes nothing", %{service: s} do
      start_on_clock(s, @abc)

      for wrong <- [[], [:a, :a], [{:a, weight: 0}], fn -> [] end, fn -> :nonsense end, fn -> raise "no list" end, 1] do
        assert is_exception(raised(fn -> ExternalService.put_endpoints(s, wrong) end))
        assert states(s) == [a: :closed, b: :closed, c: :closed]
        assert map_size(frequencies(s, 6)) == 3
      end
    end

    test "that can not be for the last of them leaves the limits of those before", %{service: s} do
      start_on_clock(s, endpoints: [{:a, concurrency: [limit: 5]}, :b], circuit_breaker: @breaker)

      for wrong <- [concurrency: [wait: 10], circuit_breaker: [slow_rate: 0.5]] do
        assert is_exception(
                 raised(fn -> ExternalService.put_endpoints(s, [{:a, concurrency: [limit: 1]}, {:b, [wrong]}]) end)
               )

        assert Concurrency.limit({s, :a}) == 5
      end
    end

    test "while calls run loses none of them", %{service: s} do
      ExternalService.start(s, endpoints: [:a, :b, :c], balancer: :random)

      changing =
        Task.async(fn ->
          for n <- 1..100, do: ExternalService.put_endpoints(s, Enum.drop([:a, :b, :c, :d], rem(n, 3)))
        end)

      results = together(4, fn _ -> for _ <- 1..500, do: went(s) end)
      Task.await(changing, 30_000)
      assert results |> List.flatten() |> Enum.uniq() |> Enum.all?(&(&1 in [:a, :b, :c, :d]))
    end
  end

  describe "drain/2" do
    test "sends no new calls there and lets those in flight finish", %{service: s} do
      start_on_clock(s, endpoints: [:a, :b], balancer: :least_busy)
      {pid, :a} = held(s, endpoint: :a)
      assert ExternalService.drain(s, :a) == :ok
      assert %{draining: true, in_flight: 1} = of(s, :a)
      assert frequencies(s, 20) == %{b: 20}
      send(pid, :go)
      assert_receive {:back, ^pid}, 10_000
      soon(fn -> of(s, :a).in_flight == 0 end)
      assert ExternalService.drain(s, :z) == {:error, :not_found}
    end

    test "of all of them leaves none to call", %{service: s} do
      start_on_clock(s, @abc)
      for endpoint <- [:a, :b, :c], do: ExternalService.drain(s, endpoint)
      assert {:error, %NoEndpoint{context: %{retry_after: :infinity}}} = went(s)
      refute ExternalService.available?(s)
    end

    test "is ended by a list that has it, and not by other options", %{service: s} do
      start_on_clock(s, @abc)
      ExternalService.drain(s, :a)
      ExternalService.reconfigure(s, timeout: 5_000)
      ExternalService.reconfigure(s, circuit_breaker: [tolerate: 7])
      assert draining(s) == [:a]
      ExternalService.put_endpoints(s, [:a, :b, :c])
      assert draining(s) == []
    end
  end

  describe "options" do
    test "of an endpoint stand on top of the service's, one by one", %{service: s} do
      own = [endpoints: [:a, {:b, circuit_breaker: [tolerate: 2]}, {:c, circuit_breaker: [reset: 5]}]]
      start_on_clock(s, Keyword.merge(@abc, own))
      for endpoint <- [:a, :b, :c], do: fail_at(s, endpoint)
      assert states(s) == [a: :open, b: :closed, c: :open]
      for _ <- 1..2, do: fail_at(s, :b)
      assert for(%{retry_after: ms} <- ExternalService.endpoints(s), do: ms) == [60_000, 60_000, 5]
    end

    test "concurrency: [per: :endpoint] is a limit for each, and an endpoint may have another", %{service: s} do
      limit = [limit: 1, per: :endpoint]
      start_on_clock(s, endpoints: [:a, {:b, concurrency: [limit: 2]}], concurrency: limit)
      for endpoint <- [:a, :b, :b], do: held(s, endpoint: endpoint)
      assert {:error, %ServiceSaturated{context: context}} = went(s, endpoint: :a)
      assert context == %{service: {s, :a}, limit: 1, in_flight: 1, queued: 0}
      assert {:error, %ServiceSaturated{context: %{limit: 2}}} = went(s, endpoint: :b)
      assert {Concurrency.in_flight({s, :b}), Concurrency.limit({s, :b})} == {2, 2}
      assert {:error, %ServiceSaturated{}} = ExternalService.call({s, :a}, & &1)
    end

    test "concurrency of an endpoint needs none of the service", %{service: s} do
      start_on_clock(s, endpoints: [{:a, concurrency: [limit: 1]}, :b])
      held(s, endpoint: :a)
      assert {:error, %ServiceSaturated{}} = went(s, endpoint: :a)
      for _ <- 1..3, do: held(s, endpoint: :b)
    end

    test "concurrency for all is one limit for all", %{service: s} do
      start_on_clock(s, endpoints: [:a, :b], concurrency: [limit: 2])
      for _ <- 1..2, do: held(s, endpoint: :a)
      assert {:error, %ServiceSaturated{context: %{service: ^s}}} = went(s, endpoint: :b)
    end

    test "of time and of retries hold at any endpoint", %{service: s} do
      clock = start_on_clock(s, endpoints: [:a, :b], timeout: 50, deadline: 220, retry: [base: 100, max_attempts: 9])
      late = fn _ -> VirtualClock.advance(clock, 100) end
      assert {:error, %DeadlineExceeded{context: %{attempts: 2, skipped: false}}} = ExternalService.call(s, late)
      assert Enum.sum(for(%{failures: failures} <- ExternalService.endpoints(s), do: failures)) == 2

      start_recording(s,
        endpoints: [:a, :b],
        retry: [budget: [ratio: 0.0, min_per_second: 0], max_attempts: 4],
        circuit_breaker: [tolerate: 1_000]
      )

      spent = fn _ -> match?({:error, %{context: %{budget: true}}}, ExternalService.call(s, fn _ -> :retry end)) end
      assert Enum.any?(1..100, spent)
    end

    test "of the breaker that melt per call count one failure, where the last attempt went", %{service: s} do
      start_recording(s, endpoints: [:a, :b], circuit_breaker: [tolerate: 5, melt: :per_call], retry: [max_attempts: 2])
      assert {:error, %{context: %{endpoint: last}}} = ExternalService.call(s, fn _ -> :retry end)
      assert for(%{endpoint: endpoint, failures: 1} <- ExternalService.endpoints(s), do: endpoint) == [last]
    end
  end

  describe "reconfigure/2" do
    test "keeps the endpoints' breakers while their options stay", %{service: s} do
      start_on_clock(s, @abc)
      fail_at(s, :a)

      for change <- [
            [timeout: 5_000],
            [balancer: :least_busy],
            [balancer: :random],
            [max_ejected: 1.0],
            [retry: [base: 5_000]],
            [circuit_breaker: [melt: :per_call]],
            [concurrency: [limit: 3, per: :endpoint]],
            [endpoints: [:c, :a]]
          ] do
        assert ExternalService.reconfigure(s, change) == :ok
        assert {change, of(s, :a).state} == {change, :open}
      end
    end

    test "makes those anew whose options change, and keeps what a hand has set", %{service: s} do
      start_on_clock(s, @abc)
      fail_at(s, :a)
      ExternalService.open({s, :b}, reason: :update)
      ExternalService.reconfigure(s, circuit_breaker: [tolerate: 3])
      assert states(s) == [a: :closed, b: :forced_open, c: :closed]
    end

    test "changes the limit for those who are in flight", %{service: s} do
      start_on_clock(s, endpoints: [:a], concurrency: [limit: 2, per: :endpoint])
      for _ <- 1..2, do: held(s)
      ExternalService.reconfigure(s, concurrency: [limit: 3, per: :endpoint])
      held(s)
      assert {:error, %ServiceSaturated{context: %{in_flight: 3, limit: 3}}} = went(s)
      assert of(s, :a).in_flight == 3
    end
  end

  test "reconfigure/2 with endpoints that can not be leaves the rate limit as it is", %{service: s} do
    limit = [limit: 3, per: 1_000, wait: false]
    start_on_clock(s, @abc ++ [rate_limit: limit])
    changes = [rate_limit: Keyword.put(limit, :limit, 1), endpoints: fn -> raise "no list" end]
    assert_raise RuntimeError, fn -> ExternalService.reconfigure(s, changes) end
    for _ <- 1..3, do: assert(went(s) in [:a, :b, :c])
  end

  describe "another breaker" do
    test "leaves those who are in flight their slots", %{service: s} do
      start_on_clock(s, endpoints: [:a], concurrency: [limit: 1, per: :endpoint])
      held(s)
      ExternalService.reconfigure(s, circuit_breaker: [tolerate: 100])
      assert {:error, %ServiceSaturated{context: %{in_flight: 1}}} = went(s)
      ExternalService.reconfigure(s, circuit_breaker: [failure_rate: 0.5])
      assert of(s, :a).in_flight == 1
      ExternalService.put_endpoints(s, [{:a, circuit_breaker: [tolerate: 3]}])
      assert of(s, :a).in_flight == 1
    end

    test "hears of what it asks for, and takes the calls that the one before refused", %{service: s} do
      start_on_clock(s, @abc)
      fail_at(s, :a)
      assert :a not in went_to(s, 12)
      ExternalService.reconfigure(s, circuit_breaker: [failure_rate: 0.5])
      assert frequencies(s, 12) == %{a: 4, b: 4, c: 4}
      assert of(s, :a).calls == 4
    end
  end

  test "start/2 on a running service starts its endpoints afresh, but a state set by hand is kept", %{service: s} do
    start_on_clock(s, @abc)
    fail_at(s, :a)
    ExternalService.drain(s, :c)
    ExternalService.open({s, :b}, reason: :update)
    ExternalService.open(s, reason: :deploy)
    start_on_clock(s, @abc)
    assert {states(s), draining(s)} == {[a: :closed, b: :forced_open, c: :closed], []}
    assert ExternalService.state(s) == :forced_open
  end

  describe "what can not be" do
    @wrong [
      {[], ~r/:endpoints option: expected list of 1 to 65536 endpoints/},
      {[:a, :b, :a], ~r/:a is there twice/},
      {[:a, {:a, weight: 2}], ~r/:a is there twice/},
      {[{:a, weight: 0}], ~r/:weight option: expected positive integer up to 1000, got: 0 .*:endpoints/},
      {[{:a, weight: -1}], ~r/:weight option/},
      {[{:a, height: 1}], ~r/unknown options \[:height\]/},
      {[{:a, circuit_breaker: [tolerate: -1]}], ~r/:tolerate option.*\[:endpoints, :circuit_breaker\]/},
      {[{:a, circuit_breaker: [reset_backoff: [factor: 2]]}], ~r/required :max option/},
      {[{:a, concurrency: [wait: 5]}], ~r/required :limit option/},
      {[:a | :b], ~r/:endpoints option/}
    ]

    for {{endpoints, message}, n} <- Enum.with_index(@wrong) do
      @endpoints endpoints
      @text Macro.escape(message)
      test "is refused, and nothing is started (#{n}: #{inspect(endpoints)})", %{service: s} do
        assert Exception.message(raised(fn -> ExternalService.start(s, endpoints: @endpoints) end)) =~ unquote(@text)
        assert ExternalService.state(s) == {:error, :not_found}
      end
    end

    test "a function that raises or gives no list of endpoints is refused", %{service: s} do
      assert raised(fn -> ExternalService.start(s, endpoints: fn -> raise "no discovery" end) end).message ==
               "no discovery"

      for nonsense <- [nil, :nonsense, [], %{}, [:a | :b]] do
        error = raised(fn -> ExternalService.start(s, endpoints: fn -> nonsense end) end)
        assert Exception.message(error) =~ "gave no list of"
        assert Exception.message(error) =~ inspect(nonsense)
      end

      assert Exception.message(raised(fn -> ExternalService.start(s, endpoints: fn -> [:a, :a] end) end)) =~ "twice"
      assert ExternalService.state(s) == {:error, :not_found}
    end

    test "a function of one argument for a service without endpoints is refused", %{service: s} do
      ExternalService.start(s)
      error = raised(fn -> ExternalService.call(s, & &1) end)
      assert %ArgumentError{} = error
      assert Exception.message(error) =~ "without `:endpoints`"
    end

    test "an endpoint that is not there, or of a service without any, is refused before anything is done", %{service: s} do
      start_on_clock(s, endpoints: [:c, :a, :b])
      error = raised(fn -> went(s, endpoint: :z) end)
      assert Exception.message(error) =~ ~r/:z is no endpoint of .*; there are \[:c, :a, :b\]/
      ExternalService.start(s)
      error = raised(fn -> ExternalService.call(s, [endpoint: :a], attempting(1)) end)
      assert Exception.message(error) =~ "has no endpoints"
      assert attempts() == 0
    end

    test "a function of two arguments is refused", %{service: s} do
      start_on_clock(s, @abc)
      assert is_exception(raised(fn -> ExternalService.call(s, fn _, _ -> 1 end) end))
    end
  end

  describe "an endpoint that ramps up" do
    test "gets its share of the calls times the ramp's, whatever the balancer", %{service: s} do
      for balancer <- [:round_robin, :random] do
        breaker = [consecutive: 1, reset: 10, ramp_up: 1_000]
        options = [endpoints: ["a", "b"], balancer: balancer, circuit_breaker: breaker, retry: [max_attempts: 1]]
        clock = start_on_clock(s, options)
        ExternalService.call(s, [endpoint: "b"], fn _endpoint -> :retry end)
        VirtualClock.advance(clock, 10)
        ExternalService.state({s, "b"})
        VirtualClock.advance(clock, 500)
        calls = for _ <- 1..20_000, do: ExternalService.call(s, & &1)
        assert_in_delta Enum.count(calls, &(&1 == "b")) / 20_000, 0.5 / 2, 0.015
        ExternalService.stop(s)
      end
    end
  end

  describe "a hand" do
    test "that opens the whole service closes the way to each endpoint, too", %{service: s} do
      start_on_clock(s, endpoints: ["a", "b"])
      ExternalService.open(s, reason: :night)
      assert {:error, %CircuitBreakerOpen{}} = ExternalService.call({s, "a"}, fn _ -> flunk("it ran") end)
      assert ExternalService.state({s, "a"}) == :forced_open
      ExternalService.close(s)
      assert ExternalService.call({s, "a"}, & &1) == "a"
    end

    test "that opens an endpoint is named where a call is for that endpoint only", %{service: s} do
      start_on_clock(s, endpoints: ["a", "b"])
      ExternalService.open({s, "a"})
      assert {:error, %CircuitBreakerOpen{context: context}} = ExternalService.call(s, [endpoint: "a"], & &1)
      assert %{service: ^s, endpoint: "a"} = context
    end
  end

  defmodule Shop do
    use ExternalService, endpoints: ["a", "b"], retry: [max_attempts: 1]
  end

  test "a module that uses the library has the functions for its endpoints" do
    start_supervised!(Shop)
    assert Enum.map(Shop.endpoints(), & &1.endpoint) == ["a", "b"]
    assert Shop.drain("a") == :ok
    assert for(_ <- 1..3, do: Shop.call(& &1)) == ["b", "b", "b"]
    assert Shop.put_endpoints(["c"]) == :ok
    assert Shop.call(& &1) == "c"
    assert Shop.reconfigure(balancer: :random) == :ok
    assert Shop.call(& &1) == "c"
    ExternalService.stop(Shop)
  end
end
