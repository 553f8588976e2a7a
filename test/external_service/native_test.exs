# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.NativeTest do
  # Memory is measured of the whole VM, so nothing runs beside these.
  use ExternalService.Case, async: false
  import ExternalService.Callers, only: [soon: 1]

  alias ExternalService.Native

  @ms 1_000_000
  @schedule {:exponential, 10 * @ms, 1, :infinity, :infinity, 5, 0}

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
  defp valid(:backoff_next), do: [@schedule, 1, 0, nil]
  defp valid(:backoff_plan), do: [@schedule, 10]
  defp valid(:backoff_window), do: [@schedule]
  defp valid(:backoff_curves), do: []
  defp valid(:trip_within), do: [@schedule, 2, :per_attempt]
  defp valid(:trip_names), do: []

  defp valid(:bulkhead_new), do: [{2, 10, 1000 * @ms}, nil]
  defp valid(:bulkhead_acquire), do: [bulkhead(), Native.holder_new(), :now]
  defp valid(:bulkhead_release), do: [bulkhead(), Native.holder_new()]
  defp valid(:bulkhead_leave), do: [Native.holder_new()]
  defp valid(:bulkhead_set), do: [bulkhead(), 3, :infinity]
  defp valid(:holder_new), do: []
  defp valid(:limiter_new), do: [{3, 1000 * @ms}, nil]
  defp valid(:limiter_reserve), do: [limiter(), 1, 1000 * @ms]
  defp valid(:limiter_peek), do: [limiter(), 1]
  defp valid(:limiter_give_back), do: [limiter(), 1, 0]
  defp valid(:limiter_reset), do: [limiter()]
  defp valid(:limiter_set), do: [limiter(), {5, 1000 * @ms}]

  defp valid(name) when name in [:bulkhead_grant, :bulkhead_reset, :bulkhead_counts], do: [bulkhead()]

  defp valid(name)
       when name in [
              :breaker_admit,
              :breaker_ask,
              :breaker_melt,
              :breaker_look,
              :breaker_reset,
              :breaker_close,
              :breaker_bypass,
              :breaker_retire
            ],
       do: [breaker()]

  defp breaker(clock \\ nil), do: Native.breaker_new(@breaker, clock)

  defp bulkhead, do: Native.bulkhead_new({2, 10, 1000 * @ms}, nil)
  defp limiter, do: Native.limiter_new({3, 1000 * @ms}, nil)

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
      'chars',
      Enum.to_list(1..1000),
      %{},
      %{a: 1},
      {},
      {1},
      {1, 2},
      {1, 2, 3},
      {1, 2, 3, 4},
      {1, 2, 3, 4, 5},
      {:exponential, 1, 1, 1, 1, 1, 1},
      {1, 1, 1, 1, 1, 1, 1},
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
      limiter()
    ]
  end

  # What a NIF may answer. Anything else, and any exception but ArgumentError, is a defect.
  defp documented?(value) when is_integer(value) or is_reference(value) or value == nil, do: true

  defp documented?(value)
       when value in [:ok, :changed, :blown, :due, :exhausted, :infinity, :full, :left, :free, :kept],
       do: true

  defp documented?({:wait, ns, place}), do: is_integer(ns) and is_integer(place)

  defp documented?({ended, end_ns, more}) when more in [:more, :done],
    do: ended >= 0 and (is_integer(end_ns) or end_ns == :infinity)

  defp documented?({:reclaimed, count, slot}), do: count > 0 and documented?(slot)
  defp documented?({limit, in_flight, queued, _lease_end}), do: limit > 0 and in_flight >= 0 and queued >= 0
  defp documented?({tag, ns}) when tag in [:changed, :open, :last, :refused], do: is_integer(ns) or ns == :infinity
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

  for {name, position} <- [breaker_new: 0, backoff_next: 0, backoff_plan: 0, backoff_window: 0, trip_within: 0] do
    test "#{name} refuses hostile fields of what it takes apart or answers as documented" do
      outcomes = Enum.map(spoilt_field(unquote(name), unquote(position)), &{outcome(unquote(name), &1), &1})
      assert [] == for({:undocumented, arguments} <- outcomes, do: arguments)
      assert Enum.count(outcomes, &match?({:refused, _}, &1)) >= 100
    end
  end

  # Just outside what is allowed, and what would be inside again if its upper bits were lost.
  defp out_of_range do
    clock = Native.clock_new(1)
    schedule = &put_elem({:exponential, @ms, 1, :infinity, :infinity, :infinity, 0}, &1, &2)
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
      backoff_next: [@schedule, 0, 0, nil],
      backoff_plan: [schedule.(5, :infinity), 1001],
      backoff_plan: [schedule.(5, :infinity), Integer.pow(2, 32)],
      trip_within: [@schedule, 1_000_001, :per_call],
      trip_within: [@schedule, Integer.pow(2, 32), :per_call],
      trip_within: [@schedule, 1, :per_year]
    ] ++
      for {field, value} <- [
            {0, :cubic},
            {1, -1},
            {2, 0},
            {3, 0},
            {4, 0},
            {5, 0},
            {6, 1_000_001},
            {6, Integer.pow(2, 32)}
          ] do
        {:backoff_window, [schedule.(field, value)]}
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
      for rule <- Native.trip_names(), do: assert(rule in options, "no option in options.ex turns #{rule} on")

      {:in, backoffs} = ExternalService.Options.schema(:retry)[:backoff][:type]
      assert Enum.sort(Native.backoff_curves()) == Enum.sort(backoffs)
    end
  end

  describe "backoff" do
    test "plans what it then does" do
      for curve <- Native.backoff_curves(), expiry <- [:infinity, 50 * @ms, 1], cap <- [:infinity, 30 * @ms] do
        schedule = {curve, 10 * @ms, 1, cap, expiry, 8, 0}
        assert Native.backoff_plan(schedule, 100) == followed(schedule, 1, 0)
      end
    end

    defp followed(schedule, retry, elapsed) do
      case Native.backoff_next(schedule, retry, elapsed, nil) do
        :exhausted -> []
        {:last, delay} -> [delay]
        delay -> [delay | followed(schedule, retry + 1, elapsed + delay)]
      end
    end

    test "spends a budget to the nanosecond" do
      for budget <- [1, 999, 50_000, 12_345_678] do
        schedule = {:exponential, 1000, 1, :infinity, budget, :infinity, 0}
        assert schedule |> Native.backoff_plan(1000) |> Enum.sum() == budget
      end
    end

    test "saturates: retry number 63 to 67, and a million, stay at the cap" do
      schedule = {:exponential, 1 * @ms, 1, 30_000 * @ms, :infinity, :infinity, 0}

      for retry <- [63, 64, 65, 66, 67, 1_000_000, Integer.pow(2, 62)] do
        assert Native.backoff_next(schedule, retry, 0, nil) == 30_000 * @ms
      end

      uncapped = {:exponential, 1 * @ms, 1, :infinity, :infinity, :infinity, 0}
      assert Native.backoff_next(uncapped, 1_000_000, 0, nil) > 30_000 * @ms
    end

    test "gives the first few of a schedule without an end" do
      assert length(Native.backoff_plan({:linear, 1, 1, :infinity, :infinity, :infinity, 0}, 7)) == 7
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
