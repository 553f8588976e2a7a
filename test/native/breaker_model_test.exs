# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Native.BreakerModelTest do
  # A breaker against a model that keeps every outcome: whatever is admitted, reported, set by hand or lost, and however
  # time passes, both answer the same, show the same and tell the same changes.
  #
  #     SEQUENCES=100000 mix test test/native/breaker_model_test.exs
  use ExternalService.Case, async: true

  alias :proper_statem, as: Statem
  alias :proper_types, as: Gen
  alias ExternalService.{BreakerModel, Native}

  # About ten commands each, of which there are to be a hundred thousand.
  @sequences max(11_000, String.to_integer(System.get_env("SEQUENCES", "0")))
  @commands 100_000

  # How many of the latest permits are remembered, to be reported.
  @permits 6

  @off %{
    tolerate: :infinity,
    within: 40,
    failure_rate: 0,
    slow_rate: 0,
    min_calls: 4,
    consecutive: 0,
    window_time: 0,
    window_calls: 6,
    slow_call: 10,
    reset: 30,
    reset_factor: 1_000_000,
    reset_max: 100,
    reset_jitter: 0,
    probes: 0,
    successes: 0,
    lease: 20,
    ramp_up: 0,
    faults: 0
  }

  ## What PropEr asks for

  def initial_state, do: BreakerModel.new(@off)

  def command(model) do
    Gen.frequency(
      [
        {8, call(:admit, [])},
        {3, call(:admit_elsewhere, [])},
        {1, call(:admit_and_die, [])},
        {2, call(:melt, [])},
        {2, call(:ask, [])},
        {8, call(:advance, [Gen.integer(1, 25)])},
        {1, call(:open, [Gen.oneof([:infinity, Gen.integer(0, 50)]), Gen.oneof([nil, :works, {:ticket, 7}])])},
        {1, call(:close, [])},
        {1, call(:bypass, [])},
        {1, call(:reset, [])}
      ] ++ with_permits(model.permits)
    )
  end

  # Old permits are reported as well, any of them twice, and their holders may be dead.
  defp with_permits([]), do: []

  defp with_permits(permits) do
    [{12, call(:report, [known(permits), outcome(), duration()])}, {2, call(:kill, [known(permits)])}]
  end

  defp known(permits), do: Gen.oneof(Enum.map(permits, &elem(&1, 0)))
  defp outcome, do: Gen.frequency([{4, :failure}, {3, :success}, {1, :ignore}])
  defp duration, do: Gen.oneof([0, 9, 10, 100])
  defp call(name, arguments), do: {:call, __MODULE__, name, arguments}

  def precondition(model, {:call, _, name, [admission | _]}) when name in [:report, :kill],
    do: List.keymember?(model.permits, admission, 0)

  def precondition(_model, _call), do: true

  # Nobody looks when time has passed: the next command finds what it has changed.
  def next_state(model, _answer, {:call, _, :advance, [time]}), do: BreakerModel.advance(model, time)

  def next_state(model, answer, call) do
    case expected(model, call) do
      {:admitted, model, permit} -> remember(model, {answer, permit, holder(call)})
      {_answer, model, _permit} -> model
    end
    |> BreakerModel.seen()
    |> BreakerModel.told()
  end

  defp holder({:call, _, :admit_elsewhere, _}), do: :another
  defp holder(_call), do: :runner

  defp remember(model, permit), do: %{model | permits: [permit | Enum.take(model.permits, @permits - 1)]}

  def postcondition(_model, {:call, _, :advance, _}, _answer), do: true

  def postcondition(model, call, answer) do
    {expected, model, _permit} = expected(model, call)
    model = BreakerModel.seen(model)
    answer(answer) == expected and shows?(call, BreakerModel.look(model)) and changes() == model.changes
  end

  defp answer({:admission, _holder, {:open, _retry_after} = refused}), do: refused
  defp answer({:admission, _holder, _permit}), do: :admitted
  defp answer(answer), do: answer

  # A dead holder's probe comes back soon, the rest is so at once.
  defp shows?({:call, _, name, _}, expected) when name in [:kill, :admit_and_die], do: shows_soon?(expected, 100_000)
  defp shows?(_call, expected), do: Native.breaker_look(breaker()) == expected

  defp shows_soon?(expected, looks) do
    Native.breaker_look(breaker()) == expected or
      (looks > 0 and :erlang.yield() and shows_soon?(expected, looks - 1))
  end

  defp expected(model, {:call, _, name, []}) when name in [:admit, :admit_elsewhere], do: BreakerModel.admit(model)

  defp expected(model, {:call, _, :admit_and_die, []}) do
    case BreakerModel.admit(model) do
      {:admitted, model, permit} -> {:done, BreakerModel.lose(model, permit), nil}
      {{:open, _retry_after}, model, nil} -> {:done, model, nil}
    end
  end

  defp expected(model, {:call, _, :ask, []}), do: {BreakerModel.ask(model), model, nil}

  # The process that runs the commands lives on.
  defp expected(model, {:call, _, :kill, [admission]}) do
    case List.keyfind(model.permits, admission, 0) do
      {_admission, permit, :another} -> {:done, BreakerModel.lose(model, permit), nil}
      {_admission, _permit, :runner} -> {:done, model, nil}
    end
  end

  defp expected(model, {:call, _, :report, [admission, outcome, duration]}),
    do: {:done, BreakerModel.report(model, permit(model, admission), outcome, duration), nil}

  defp expected(model, {:call, _, :open, [time, reason]}),
    do: {:done, BreakerModel.open_by_hand(model, time, reason), nil}

  defp expected(model, {:call, _, name, []}), do: {:done, apply(BreakerModel, name, [model]), nil}

  defp permit(model, admission), do: model.permits |> List.keyfind(admission, 0) |> elem(1)

  ## The same on the real thing

  def admit, do: {:admission, self(), admission(Native.breaker_admit(breaker()))}

  defp admission({:changed, permit}), do: permit
  defp admission(answer), do: answer

  # By a process that lives on.
  def admit_elsewhere do
    {breaker, parent} = {breaker(), self()}

    pid =
      spawn(fn ->
        send(parent, {:admission, self(), Native.breaker_admit(breaker)})
        receive do: (:end -> :ok)
      end)

    Process.put(:holders, [pid | Process.get(:holders)])
    receive do: ({:admission, ^pid, answer} -> {:admission, pid, admission(answer)})
  end

  def admit_and_die do
    breaker = breaker()
    {_pid, ref} = spawn_monitor(fn -> Native.breaker_admit(breaker) end)
    receive do: ({:DOWN, ^ref, _, _, :normal} -> :done)
  end

  def kill({:admission, pid, _permit}), do: if(pid == self(), do: :done, else: exit_and_wait(pid))

  defp exit_and_wait(pid) do
    ref = Process.monitor(pid)
    Process.exit(pid, :kill)
    receive do: ({:DOWN, ^ref, _, _, _} -> :done)
  end

  def report({:admission, _holder, permit}, outcome, duration),
    do: done(Native.breaker_report(breaker(), permit, outcome, duration))

  def ask, do: Native.breaker_ask(breaker())
  def melt, do: done(Native.breaker_melt(breaker()))
  def open(time, reason), do: done(Native.breaker_open(breaker(), time, reason))
  def close, do: done(Native.breaker_close(breaker()))
  def bypass, do: done(Native.breaker_bypass(breaker()))
  def reset, do: done(Native.breaker_reset(breaker()))
  def advance(time), do: Native.clock_advance(clock(), time)

  defp done(answer) when answer in [:ok, :changed], do: :done

  defp changes(turn \\ :first) do
    case Native.breaker_change(breaker(), turn) do
      nil -> []
      change -> [change | changes(:next)]
    end
  end

  defp breaker, do: Process.get(:breaker)
  defp clock, do: Process.get(:clock)

  ## The properties

  defp config(leases) do
    rules =
      Gen.oneof([
        %{tolerate: 2},
        %{failure_rate: 500_000},
        %{failure_rate: 600_000, window_time: 50, window_calls: 0},
        %{slow_rate: 500_000},
        %{consecutive: 3},
        %{tolerate: 3, failure_rate: 700_000, slow_rate: 700_000, consecutive: 4},
        %{tolerate: 1, consecutive: 2, slow_rate: 1_000_000, window_time: 100, window_calls: 0}
      ])

    probes =
      Gen.oneof([
        %{},
        %{probes: 1, successes: 1},
        %{probes: 3, successes: 1},
        %{probes: 1, successes: 3, reset_factor: 2_000_000},
        %{probes: 2, successes: 2, reset_factor: 1_500_000}
      ])

    times = {Gen.oneof([30, 0]), Gen.oneof(leases)}

    Gen.bind(
      {rules, probes, times},
      fn {rules, probes, {reset, lease}} ->
        @off |> Map.merge(rules) |> Map.merge(probes) |> Map.merge(%{reset: reset, lease: lease})
      end,
      false
    )
  end

  defp commands(leases) do
    Gen.bind(config(leases), &Statem.commands(__MODULE__, BreakerModel.new(&1)), false)
  end

  # Runs them on a new breaker, and then `after_them` with the model.
  defp run([{:init, model} | _] = commands, after_them) do
    Process.put(:clock, Native.clock_new(0))
    Process.put(:breaker, Native.breaker_new(model.config, clock()))
    Process.put(:holders, [])
    {_history, model, result} = Statem.run_commands(__MODULE__, commands)
    result = result == :ok and after_them.(BreakerModel.seen(model))
    Enum.each(Process.get(:holders), &Process.exit(&1, :kill))
    result
  end

  @tag :property
  @tag timeout: :infinity
  test "any sequence of events leaves the breaker as the plain rules say, and tells the changes they say" do
    ran = :counters.new(1, [])

    check(commands([20, :infinity]), @sequences, fn commands ->
      :counters.add(ran, 1, length(commands) - 1)
      run(commands, fn _model -> true end)
    end)

    assert :counters.get(ran, 1) >= @commands
  end

  @tag :property
  @tag timeout: :infinity
  test "from every state some time and a call lead out, and calls that go well to closed, unless a hand holds it" do
    states = :counters.new(5, [])

    check(commands([20]), 1_000, fn commands ->
      run(commands, fn model ->
        :counters.add(states, index(model.state), 1)
        advance(1_000)
        leads_out?(model)
      end)
    end)

    # Every state was a start.
    for n <- 1..5, do: assert(:counters.get(states, n) > 0)
  end

  defp index(state), do: Enum.find_index([:closed, :open, :half_open, :forced_open, :bypassed], &(&1 == state)) + 1

  defp leads_out?(%{state: :forced_open, until: :infinity}), do: match?({:admission, _, {:open, :infinity}}, admit())
  defp leads_out?(%{state: :bypassed}), do: goes_well?() and Native.breaker_look(breaker()).state == :bypassed

  # A success that makes the calls enough for a rate may open it.
  defp leads_out?(%{state: :closed}), do: goes_well?()

  defp leads_out?(model),
    do: Enum.all?(1..max(1, model.config.successes), fn _ -> goes_well?() end) and closed?()

  defp closed?, do: Native.breaker_look(breaker()).state == :closed

  defp goes_well? do
    admission = admit()
    answer(admission) == :admitted and report(admission, :success, 0) == :done
  end
end
