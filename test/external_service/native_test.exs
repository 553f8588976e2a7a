# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.NativeTest do
  # Memory is measured of the whole VM, so nothing runs beside these.
  use ExternalService.Case, async: false
  import ExternalService.Callers, only: [soon: 1]

  alias ExternalService.Native

  @ms 1_000_000
  @schedule {:exponential, 10 * @ms, 10 * @ms, 2_000_000, {}, :infinity, :infinity, 5, 0, 30_000 * @ms}
  @curve 0
  @base 1
  @step 2
  @multiplier 3
  @delays 4
  @cap 5
  @expiry 6
  @attempts 7
  @jitter 8
  @asked_max 9

  @breaker %{
    tolerate: 2,
    within: 10_000 * @ms,
    failure_rate: 500_000,
    slow_rate: 500_000,
    min_calls: 5,
    consecutive: 7,
    window_time: 0,
    window_calls: 50,
    slow_call: 100 * @ms,
    reset: 1000 * @ms,
    reset_factor: 2_000_000,
    reset_max: 5000 * @ms,
    reset_jitter: 0,
    probes: 2,
    successes: 2,
    lease: 1000 * @ms,
    ramp_up: 0,
    faults: 0
  }

  # Functions of the module that are no NIFs.
  @elixir [load: 0]

  # NIF => arguments that are valid, made anew for each call.
  defp valid(:clock_new), do: [1]
  defp valid(:clock_now), do: [Native.clock_new(1)]
  defp valid(:clock_advance), do: [Native.clock_new(1), 5]
  defp valid(:clock_wait_until), do: [Native.clock_new(1), 5]
  defp valid(:breaker_new), do: [@breaker, nil]
  defp valid(:breaker_report), do: [breaker(), 0, :failure, 0]
  defp valid(:breaker_open), do: [breaker(), 5 * @ms, :reason]
  defp valid(:breaker_inherit), do: [breaker(), breaker()]
  defp valid(:breaker_change), do: [breaker(), :first]
  defp valid(:budget_new), do: [{200_000, 10}, nil]
  defp valid(:backoff_next), do: [@schedule, 1, 0, 0, :infinity, nil]
  defp valid(:backoff_after), do: [@schedule, 1, 10 * @ms, 0, :infinity]
  defp valid(:backoff_plan), do: [@schedule, 10]
  defp valid(:backoff_window), do: [@schedule]
  defp valid(:backoff_curves), do: []
  defp valid(:trip_within), do: [@schedule, 2, :per_attempt]
  defp valid(:trip_narrowest), do: [@schedule, 2, :per_attempt]
  defp valid(:trip_names), do: []

  defp valid(:bulkhead_new), do: [{2, 10, 1000 * @ms}, nil, Native.endpoint_new()]
  defp valid(:bulkhead_acquire), do: [bulkhead(), Native.holder_new(), :now]
  defp valid(:bulkhead_release), do: [bulkhead(), Native.holder_new()]
  defp valid(:bulkhead_leave), do: [Native.holder_new()]
  defp valid(:bulkhead_set), do: [bulkhead(), 3, :infinity]
  defp valid(:holder_new), do: []
  defp valid(:endpoint_new), do: []
  defp valid(:endpoint_took), do: [Native.endpoint_new(), 5 * @ms]
  defp valid(:endpoint_let_in), do: [Native.endpoint_new()]
  defp valid(:endpoint_drain), do: [Native.endpoint_new(), true]
  defp valid(:endpoint_look), do: [Native.endpoint_new(), nil]
  defp valid(:balancer_new), do: [:hash, members(3), 500_000, nil]
  defp valid(:balancer_pick), do: [balancer(), 7, [0, 1]]
  defp valid(:balancer_eject), do: [balancer(), 2, 1000 * @ms]
  defp valid(:balancer_soonest), do: [balancer()]
  defp valid(:balancer_rules), do: []
  defp valid(:limiter_new), do: [{3, 1000 * @ms}, nil]
  defp valid(:limiter_reserve), do: [limiter(), 1, 1000 * @ms]
  defp valid(:limiter_peek), do: [limiter(), 1]
  defp valid(:limiter_give_back), do: [limiter(), 1, 0]
  defp valid(:limiter_reset), do: [limiter()]
  defp valid(:limiter_set), do: [limiter(), {5, 1000 * @ms}]

  defp valid(name) when name in [:budget_deposit, :budget_withdraw, :budget_balance], do: [budget()]
  defp valid(name) when name in [:bulkhead_grant, :bulkhead_reset, :bulkhead_counts], do: [bulkhead()]

  defp valid(name)
       when name in [
              :breaker_admit,
              :breaker_ask,
              :breaker_melt,
              :breaker_idle,
              :breaker_look,
              :breaker_reset,
              :breaker_close,
              :breaker_bypass,
              :breaker_retire
            ],
       do: [breaker()]

  defp breaker(clock \\ nil), do: Native.breaker_new(@breaker, clock)

  defp bulkhead, do: Native.bulkhead_new({2, 10, 1000 * @ms}, nil, nil)
  defp members(count), do: for(id <- 1..count, do: {Native.endpoint_new(), id, id})
  defp balancer(clock \\ nil), do: Native.balancer_new(:round_robin, members(3), 500_000, clock)
  defp limiter, do: Native.limiter_new({3, 1000 * @ms}, nil)
  defp budget(clock \\ nil), do: Native.budget_new({200_000, 10}, clock)

  # The schedule with other values in some places.
  defp schedule(changes), do: Enum.reduce(changes, @schedule, fn {field, value}, s -> put_elem(s, field, value) end)

  defp nifs, do: Native.__info__(:functions) -- @elixir

  defp hostile do
    [
      nil,
      true,
      :ok,
      :infinity,
      :nan,
      :"",
      :first,
      0,
      1,
      -1,
      2,
      255,
      1_000_000,
      1_000_001,
      Integer.pow(2, 31),
      Integer.pow(2, 32),
      Integer.pow(2, 59),
      Integer.pow(2, 60),
      Integer.pow(2, 63) - 1,
      Integer.pow(2, 63),
      Integer.pow(2, 64) - 1,
      Integer.pow(2, 64),
      Integer.pow(10, 30),
      -Integer.pow(2, 63),
      -Integer.pow(2, 63) - 1,
      -Integer.pow(10, 30),
      0.0,
      -0.5,
      1.5,
      1.0e308,
      "",
      "text",
      <<1::3>>,
      String.duplicate("x", 100_000),
      [],
      [1],
      [1 | 2],
      ~c"chars",
      Enum.to_list(1..1000),
      %{},
      %{a: 1},
      {},
      {1},
      {1, 2},
      {1, 2, 3},
      {1, 2, 3, 4},
      {1, 2, 3, 4, 5},
      @schedule,
      schedule(%{@curve => :list, @delays => {1, 2}}),
      List.to_tuple(List.duplicate(1, 65)),
      :full,
      :decorrelated,
      {1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
      List.to_tuple(Enum.to_list(1..10_000)),
      self(),
      make_ref(),
      hd(Port.list()),
      fn -> 1 end,
      &Native.clock_now/1,
      Native.clock_new(1),
      breaker(),
      bulkhead(),
      Native.holder_new(),
      limiter(),
      budget(),
      Native.endpoint_new(),
      balancer()
    ]
  end

  # What a NIF may answer. Anything else, and any exception but ArgumentError, is a defect.
  defp documented?(value) when is_integer(value) or is_reference(value) or value == nil, do: true

  defp documented?(value)
       when value in [
              :ok,
              :changed,
              :blown,
              :due,
              :exhausted,
              :infinity,
              :full,
              :left,
              :free,
              :kept,
              :late,
              true,
              false
            ],
       do: true

  defp documented?({:wait, ns, place}), do: is_integer(ns) and is_integer(place)

  defp documented?({ended, end_ns, more}) when more in [:more, :done],
    do: ended >= 0 and (is_integer(end_ns) or end_ns == :infinity)

  defp documented?({:reclaimed, count, slot}), do: count > 0 and documented?(slot)

  defp documented?({in_flight, latency, _out, draining}) when is_boolean(draining),
    do: in_flight >= 0 and (latency == nil or latency >= 0)

  defp documented?({limit, in_flight, queued, _lease_end}), do: limit > 0 and in_flight >= 0 and queued >= 0
  defp documented?({tag, ns}) when tag in [:changed, :open, :last, :refused], do: is_integer(ns) or ns == :infinity
  defp documented?({calls, ns}) when is_integer(calls), do: is_integer(ns) or ns == :infinity
  defp documented?({generation, row, serial}) when is_integer(row), do: is_integer(generation) and is_integer(serial)
  defp documented?(%{from: from, to: to}), do: from != to
  defp documented?(%{state: state}), do: state in [:closed, :open, :half_open, :forced_open, :bypassed]
  defp documented?(list) when is_list(list), do: Enum.all?(list, &(is_integer(&1) or is_atom(&1)))
  defp documented?(_value), do: false

  defp outcome(name, arguments) do
    if documented?(apply(Native, name, arguments)), do: :answered, else: :undocumented
  rescue
    ArgumentError -> :refused
  end

  # All argument lists that differ from a valid one in one place.
  defp spoilt(name) do
    for {_, position} <- Enum.with_index(valid(name)), term <- hostile() do
      List.replace_at(valid(name), position, term)
    end
  end

  # All argument lists whose tuple or map at `position` has one field replaced, or left out.
  defp spoilt_field(name, position) do
    composite = Enum.at(valid(name), position)

    spoilt =
      if is_map(composite) do
        without = for field <- Map.keys(composite), do: Map.delete(composite, field)
        for(field <- Map.keys(composite), term <- hostile(), do: Map.put(composite, field, term)) ++ without
      else
        for field <- 0..(tuple_size(composite) - 1), term <- hostile(), do: put_elem(composite, field, term)
      end

    for term <- spoilt, do: List.replace_at(valid(name), position, term)
  end

  test "every NIF has valid arguments in this file, and answers them" do
    for {name, arity} <- nifs() do
      assert length(valid(name)) == arity
      assert {name, outcome(name, valid(name))} == {name, :answered}
    end
  end

  for {name, arity} <- Native.__info__(:functions) -- @elixir, arity > 0 do
    test "#{name}/#{arity} refuses every hostile argument or answers as documented" do
      outcomes = Enum.map(spoilt(unquote(name)), &{outcome(unquote(name), &1), &1})
      assert [] == for({:undocumented, arguments} <- outcomes, do: arguments)
      assert Enum.count(outcomes, &match?({:refused, _}, &1)) >= 30
    end
  end

  @taken_apart [breaker_new: 0, budget_new: 0, backoff_next: 0, backoff_after: 0, backoff_plan: 0, backoff_window: 0] ++
                 [trip_within: 0, trip_narrowest: 0, bulkhead_new: 0]

  for {name, position} <- @taken_apart do
    test "#{name} refuses hostile fields of what it takes apart or answers as documented" do
      outcomes = Enum.map(spoilt_field(unquote(name), unquote(position)), &{outcome(unquote(name), &1), &1})
      assert [] == for({:undocumented, arguments} <- outcomes, do: arguments)
      assert Enum.count(outcomes, &match?({:refused, _}, &1)) >= 100
    end
  end

  # Just outside what is allowed, and what would be inside again if its upper bits were lost.
  defp out_of_range do
    clock = Native.clock_new(1)
    endless = schedule(%{@attempts => :infinity})
    breaker = &Map.put(@breaker, &1, &2)

    [
      clock_new: [-1],
      clock_new: [Integer.pow(2, 64)],
      clock_advance: [clock, -1],
      clock_advance: [clock, Integer.pow(2, 63)],
      clock_advance: [nil, 1],
      clock_wait_until: [nil, 1],
      breaker_new: [breaker.(:tolerate, -1), nil],
      breaker_new: [breaker.(:tolerate, 1_000_001), nil],
      breaker_new: [breaker.(:tolerate, Integer.pow(2, 32) - 1), nil],
      breaker_new: [breaker.(:tolerate, Integer.pow(2, 32)), nil],
      breaker_new: [breaker.(:within, 0), nil],
      breaker_new: [breaker.(:failure_rate, 1_000_001), nil],
      breaker_new: [breaker.(:min_calls, 0), nil],
      breaker_new: [breaker.(:min_calls, 51), nil],
      breaker_new: [breaker.(:window_time, -1), nil],
      breaker_new: [breaker.(:slow_call, 0), nil],
      breaker_new: [breaker.(:reset, -1), nil],
      breaker_new: [breaker.(:reset_factor, 999_999), nil],
      breaker_new: [breaker.(:reset_max, 999 * @ms), nil],
      breaker_new: [breaker.(:reset_jitter, 1_000_001), nil],
      breaker_new: [breaker.(:probes, 1_001), nil],
      breaker_new: [breaker.(:successes, 0), nil],
      breaker_new: [breaker.(:lease, 0), nil],
      breaker_new: [breaker.(:ramp_up, -1), nil],
      breaker_new: [breaker.(:faults, 1_000_001), nil],
      breaker_new: [breaker.(:faults, Integer.pow(2, 32)), nil],
      breaker_report: [breaker(), -1, :failure, 0],
      breaker_report: [breaker(), {0, 2, 0}, :failure, 0],
      breaker_report: [breaker(), 0, :melted, 0],
      breaker_report: [breaker(), 0, :failure, -1],
      breaker_open: [breaker(), -1, nil],
      breaker_change: [breaker(), :last],
      budget_new: [{-1, 10}, nil],
      budget_new: [{10_000_001, 10}, nil],
      budget_new: [{Integer.pow(2, 32), 10}, nil],
      budget_new: [{200_000, -1}, nil],
      budget_new: [{200_000, 1_000_001}, nil],
      budget_new: [{200_000, Integer.pow(2, 32)}, nil],
      backoff_next: [@schedule, 0, 0, 0, :infinity, nil],
      backoff_next: [@schedule, Integer.pow(2, 64), 0, 0, :infinity, nil],
      backoff_next: [@schedule, 1, -1, 0, :infinity, nil],
      backoff_next: [@schedule, 1, Integer.pow(2, 63), 0, :infinity, nil],
      backoff_next: [@schedule, 1, 0, Integer.pow(2, 63), :infinity, nil],
      backoff_next: [@schedule, 1, 0, 0, Integer.pow(2, 63), nil],
      backoff_next: [@schedule, 1, 0, 0, nil, nil],
      backoff_after: [@schedule, 0, 0, 0, :infinity],
      backoff_after: [@schedule, 1, -1, 0, :infinity],
      backoff_after: [@schedule, 1, Integer.pow(2, 63), 0, :infinity],
      backoff_after: [@schedule, 1, :infinity, 0, :infinity],
      backoff_plan: [endless, 1001],
      backoff_plan: [endless, Integer.pow(2, 32)],
      balancer_new: [:fastest, members(3), 500_000, nil],
      balancer_new: [:random, [], 500_000, nil],
      balancer_new: [:random, [hd(members(1)) | :rest], 500_000, nil],
      balancer_new: [:random, members(3), 1_000_001, nil],
      balancer_new: [:random, members(3), Integer.pow(2, 32), nil],
      balancer_new: [:random, List.duplicate(hd(members(1)), 2), 500_000, nil],
      balancer_new: [:random, List.duplicate(hd(members(1)), 65_537), 500_000, nil],
      balancer_pick: [balancer(), -1, []],
      balancer_pick: [balancer(), Integer.pow(2, 64), []],
      balancer_pick: [balancer(), 0, Enum.to_list(1..65)],
      balancer_pick: [balancer(), 0, [-1]],
      balancer_pick: [balancer(), 0, [1 | 2]],
      balancer_eject: [balancer(), 3, 0],
      balancer_eject: [balancer(), Integer.pow(2, 32), 0],
      balancer_eject: [balancer(), 0, -1],
      endpoint_drain: [Native.endpoint_new(), nil],
      trip_within: [@schedule, 1_000_001, :per_call],
      trip_within: [@schedule, Integer.pow(2, 32), :per_call],
      trip_within: [@schedule, 1, :per_year],
      trip_narrowest: [@schedule, 1_000_001, :per_call],
      trip_narrowest: [@schedule, 1, :per_year]
    ] ++
      for {field, value} <- [
            {@curve, :cubic},
            {@curve, :list},
            {@base, -1},
            {@base, Integer.pow(2, 63)},
            {@step, -1},
            {@multiplier, 999_999},
            {@multiplier, 1_000_000_001},
            {@multiplier, Integer.pow(2, 32) + 2_000_000},
            {@delays, {1}},
            {@delays, []},
            {@cap, 0},
            {@expiry, 0},
            {@attempts, 0},
            {@jitter, 1_000_001},
            {@jitter, Integer.pow(2, 32)},
            {@jitter, :half},
            {@asked_max, -1}
          ] do
        {:backoff_window, [schedule(%{field => value})]}
      end ++
      for member <-
            [{0, 1, 1}, {Native.endpoint_new(), -1, 1}, {Native.endpoint_new(), 1}, nil] ++
              for(weight <- [0, 1_001, Integer.pow(2, 32) + 1], do: {Native.endpoint_new(), 9, weight}) do
        {:balancer_new, [:random, members(2) ++ [member], 500_000, nil]}
      end ++
      for delays <- [{}, {-1}, {1, -1}, {Integer.pow(2, 63)}, {1, :infinity}, List.to_tuple(List.duplicate(1, 65))] do
        {:backoff_window, [schedule(%{@curve => :list, @delays => delays})]}
      end
  end

  test "numbers and words out of range are refused" do
    for {name, arguments} <- out_of_range() do
      assert {name, arguments, outcome(name, arguments)} == {name, arguments, :refused}
    end
  end

  test "a handle of another kind is refused everywhere" do
    for {name, _} <- nifs(), {argument, position} <- Enum.with_index(valid(name)), is_reference(argument) do
      for other <- [Native.clock_new(1), breaker(), make_ref()], kind(other) != kind(argument) do
        assert outcome(name, List.replace_at(valid(name), position, other)) == :refused
      end
    end
  end

  defp kind(handle) do
    Enum.find_value([clock: &Native.clock_now/1, breaker: &Native.breaker_ask/1], :none, fn {kind, nif} ->
      try do
        nif.(handle) && kind
      rescue
        ArgumentError -> nil
      end
    end)
  end

  test "hostile arguments in every place at once crash nothing, over thousands of random calls" do
    terms = List.to_tuple(hostile())
    pick = fn -> elem(terms, :rand.uniform(tuple_size(terms)) - 1) end

    for {name, arity} <- nifs(), arity > 0, _ <- 1..500 do
      arguments = for _ <- 1..arity, do: pick.()
      assert outcome(name, arguments) != :undocumented
    end
  end

  test "the NIFs keep working after all of that" do
    clock = Native.clock_new(1)
    breaker = breaker(clock)
    assert Native.breaker_ask(breaker) == :ok
    for _ <- 1..2, do: assert(Native.breaker_melt(breaker) == :ok)
    assert Native.breaker_melt(breaker) == :changed

    assert %{from: :closed, to: :open, rule: :tolerate, counts: %{window_failures: 3}} =
             Native.breaker_change(breaker, :first)

    assert Native.breaker_change(breaker, :next) == nil
    assert {:open, _} = Native.breaker_admit(breaker)
    Native.clock_advance(clock, 1000 * @ms)
    assert {:changed, {_generation, 0, _serial} = probe} = Native.breaker_admit(breaker)
    assert %{from: :open, to: :half_open, rule: nil} = Native.breaker_change(breaker, :first)
    assert Native.breaker_change(breaker, :next) == nil
    assert Native.breaker_report(breaker, probe, :success, 0) == :ok
  end

  describe "the rules and curves of the core" do
    test "are the options that choose them" do
      options = Keyword.keys(ExternalService.Options.schema(:circuit_breaker))
      for rule <- Native.trip_names(), do: assert(rule in options, "no option in declarations.ex turns #{rule} on")

      # A list is a curve without a name of its own among the options.
      {:or, [{:in, backoffs} | _others]} = ExternalService.Options.schema(:retry)[:backoff][:type]
      assert Enum.sort(Native.backoff_curves()) == Enum.sort([:list | backoffs])

      for rule <- Native.balancer_rules() -- [:hash],
          do: assert(ExternalService.Options.Type.valid?(:balancer, rule), "no option turns #{rule} on")
    end
  end

  describe "the narrowest window" do
    test "is told with the calls it holds, and the automatic one is twice as wide or ten seconds" do
      schedule = put_elem(@schedule, @base, 1000 * @ms)
      assert Native.trip_narrowest(schedule, 10, :per_attempt) == {3, 45_000 * @ms}
      assert Native.trip_narrowest(schedule, 10, :per_call) == {10, 150_000 * @ms}
      assert Native.trip_within(schedule, 10, :per_attempt) == 90_000 * @ms
      assert Native.trip_narrowest(@schedule, 10, :per_attempt) == {3, 450 * @ms}
      assert Native.trip_within(@schedule, 10, :per_attempt) == 10_000 * @ms
    end

    test "of retries without an end is infinite" do
      assert Native.trip_narrowest(put_elem(@schedule, @attempts, :infinity), 10, :per_attempt) == {1, :infinity}
    end
  end

  describe "backoff" do
    defp of_curve(:list, changes),
      do: schedule(Map.merge(%{@curve => :list, @delays => {@ms, 5 * @ms, 40 * @ms}}, changes))

    defp of_curve(curve, changes), do: schedule(Map.put(changes, @curve, curve))

    defp next(schedule, retry), do: Native.backoff_next(schedule, retry, 0, 0, :infinity, nil)

    test "has four curves" do
      plan = &Enum.map(Native.backoff_plan(&1, 10), fn ns -> ns / @ms end)
      assert Native.backoff_curves() == [:exponential, :linear, :constant, :list]
      assert plan.(of_curve(:exponential, %{})) == [10, 20, 40, 80]
      assert plan.(of_curve(:exponential, %{@multiplier => 1_100_000})) == [10, 11, 12.1, 13.31]
      assert plan.(of_curve(:linear, %{@step => 3 * @ms})) == [10, 13, 16, 19]
      assert plan.(of_curve(:constant, %{})) == [10, 10, 10, 10]
      assert plan.(of_curve(:list, %{})) == [1, 5, 40, 40]
      assert plan.(of_curve(:list, %{@cap => 30 * @ms})) == [1, 5, 30, 30]
    end

    test "plans what it then does" do
      for curve <- Native.backoff_curves(), expiry <- [:infinity, 50 * @ms, 1], cap <- [:infinity, 30 * @ms] do
        schedule = of_curve(curve, %{@cap => cap, @expiry => expiry, @attempts => 8})
        assert Native.backoff_plan(schedule, 100) == followed(schedule, 1, 0)
        assert Native.backoff_window(schedule) == Enum.sum(Native.backoff_plan(schedule, 100))
      end
    end

    defp followed(schedule, retry, elapsed) do
      case Native.backoff_next(schedule, retry, 0, elapsed, :infinity, nil) do
        :exhausted -> []
        {:last, delay} -> [delay]
        delay -> [delay | followed(schedule, retry + 1, elapsed + delay)]
      end
    end

    test "spends a budget to the nanosecond" do
      for budget <- [1, 999, 50_000, 12_345_678] do
        schedule = schedule(%{@base => 1000, @expiry => budget, @attempts => :infinity})
        assert schedule |> Native.backoff_plan(1000) |> Enum.sum() == budget
      end
    end

    test "saturates: retry number 63 to 67, a million, and the largest, stay at the cap" do
      for curve <- [:exponential, :linear], retry <- [1_000_000, Integer.pow(2, 62), Integer.pow(2, 64) - 2] do
        changes = %{@base => @ms, @step => @ms, @attempts => Integer.pow(2, 64) - 1}
        assert next(of_curve(curve, Map.put(changes, @cap, 30_000 * @ms)), retry) == 30_000 * @ms
        assert next(of_curve(curve, changes), retry) > 30_000 * @ms
      end

      capped = schedule(%{@cap => 30_000 * @ms, @attempts => :infinity})
      for retry <- 63..67, do: assert(next(capped, retry) == 30_000 * @ms)
      assert next(capped, Integer.pow(2, 64) - 1) == :exhausted
    end

    test "gives the first few of a schedule without an end" do
      assert length(Native.backoff_plan(of_curve(:linear, %{@attempts => :infinity}), 7)) == 7
    end

    test "that would end after the deadline is late, unless there is nothing more to wait for" do
      assert Native.backoff_next(@schedule, 1, 0, 0, 10 * @ms + 1, nil) == 10 * @ms
      for left <- [10 * @ms, 0, -1], do: assert(Native.backoff_next(@schedule, 1, 0, 0, left, nil) == :late)
      assert Native.backoff_next(@schedule, 5, 0, 0, 0, nil) == :exhausted
      assert Native.backoff_after(@schedule, 1, 7 * @ms, 0, 7 * @ms) == :late
      trimmed = schedule(%{@expiry => 5 * @ms})
      assert Native.backoff_next(trimmed, 1, 0, 0, 5 * @ms + 1, nil) == {:last, 5 * @ms}
      assert Native.backoff_next(trimmed, 1, 0, 0, 5 * @ms, nil) == :late
    end

    test "gives way to a delay that the server asks for, within bounds" do
      schedule = schedule(%{@cap => 5 * @ms, @jitter => :full, @asked_max => 1000 * @ms})
      for ms <- [0, 1, 7, 1000], do: assert(Native.backoff_after(schedule, 1, ms * @ms, 0, :infinity) == ms * @ms)
      assert Native.backoff_after(schedule, 1, 1001 * @ms, 0, :infinity) == 1000 * @ms
      assert Native.backoff_after(schedule, 5, 1, 0, :infinity) == :exhausted
      assert Native.backoff_after(schedule(%{@expiry => 9}), 1, 100, 4, :infinity) == {:last, 5}
      assert Native.backoff_after(schedule(%{@asked_max => :infinity}), 1, 100_000 * @ms, 0, :infinity) == 100_000 * @ms
    end

    test "draws its jitter from the clock, within each kind's bounds" do
      clock = Native.clock_new(7)

      draw = fn jitter, previous ->
        schedule = schedule(%{@jitter => jitter, @cap => 500 * @ms})
        Enum.min_max(for _ <- 1..1000, do: div(Native.backoff_next(schedule, 2, previous, 0, :infinity, clock), @ms))
      end

      assert draw.(0, 0) == {20, 20}
      assert draw.(500_000, 0) == {10, 29}
      assert draw.(:full, 0) == {0, 19}
      assert draw.(:decorrelated, 20 * @ms) == {10, 59}
      assert {low, high} = draw.(:decorrelated, Integer.pow(2, 63) - 1)
      assert low in 10..15 and high in 495..499
    end

    test "of a seed draws the same delays again" do
      delays = fn ->
        clock = Native.clock_new(3)
        schedule = schedule(%{@jitter => :decorrelated})
        for _ <- 1..20, do: Native.backoff_next(schedule, 2, 50 * @ms, 0, :infinity, clock)
      end

      assert delays.() == delays.()
    end
  end

  describe "a retry budget" do
    test "is full at first, and gives no more than there is" do
      budget = budget(Native.clock_new(1))
      assert Native.budget_balance(budget) == 100_000_000
      for _ <- 1..100, do: assert(Native.budget_withdraw(budget) == true)
      assert Native.budget_withdraw(budget) == false
      assert Native.budget_balance(budget) == 0
    end

    test "is filled by successes and by time on its clock" do
      clock = Native.clock_new(1)
      budget = budget(clock)
      for _ <- 1..100, do: Native.budget_withdraw(budget)
      for _ <- 1..5, do: assert(Native.budget_deposit(budget) == :ok)
      assert Native.budget_balance(budget) == 1_000_000
      Native.clock_advance(clock, 150 * @ms)
      assert Native.budget_balance(budget) == 2_500_000
      assert [true, true, false] == for(_ <- 1..3, do: Native.budget_withdraw(budget))
      Native.clock_advance(clock, 3_600_000 * @ms)
      assert Native.budget_balance(budget) == 100_000_000
    end
  end

  describe "memory" do
    # The VM's own count and, where the system tells, what the process holds. Every process is collected, since a
    # handle may linger in any of them, and what a persistent term held goes only after all were.
    defp memory do
      Enum.each(Process.list(), &:erlang.garbage_collect/1)
      :erlang.memory(:total) + resident()
    end

    defp resident do
      case File.read("/proc/self/statm") do
        {:ok, text} -> (text |> String.split() |> Enum.at(1) |> String.to_integer()) * 4096
        {:error, _} -> 0
      end
    end

    defp repeat(rounds, round), do: Task.await(Task.async(fn -> Enum.each(1..rounds, round) end), 60_000)

    # The system takes memory back when it pleases, and the VM one old persistent term after the other, so the figure
    # is looked at again until it is there.
    defp grows_less_than(bytes, before), do: soon(fn -> memory() - before < bytes end)

    test "of dropped breakers and clocks is given back, over 100,000 rounds" do
      round = fn _ ->
        clock = Native.clock_new(1)
        Native.breaker_new(%{@breaker | tolerate: 0}, clock) |> Native.breaker_melt()
      end

      repeat(10_000, round)
      before = memory()
      repeat(100_000, round)
      assert grows_less_than(5_000_000, before)
    end

    test "of dropped balancers, endpoints and what counts their calls is given back, over 20,000 rounds" do
      round = fn _ ->
        [{endpoint, _id, _weight} | _] = members = members(20)
        Native.balancer_new(:hash, members, 0, Native.clock_new(1))
        Native.bulkhead_new({2, 10, :infinity}, nil, endpoint)
        outcome(:balancer_new, [:hash, members ++ [:no_member], 0, nil])
      end

      repeat(1_000, round)
      before = memory()
      repeat(20_000, round)
      assert grows_less_than(5_000_000, before)
    end

    test "of services started again and stopped is given back", %{service: s} do
      round = fn _ ->
        ExternalService.start(s, circuit_breaker: [tolerate: 100_000])
        ExternalService.start(s, circuit_breaker: [tolerate: 100_000])
        ExternalService.stop(s)
      end

      repeat(20, round)
      before = memory()
      repeat(300, round)
      assert grows_less_than(50_000_000, before)
    end
  end
end
