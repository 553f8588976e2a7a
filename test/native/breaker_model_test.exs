# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Native.BreakerModelTest do
  # A breaker against a model that keeps every outcome: whatever is admitted, reported, set by hand or lost, and however
  # time passes, both show the same after each step.
  use ExternalService.Case, async: true
  import ExternalService.Callers, only: [soon: 1]

  alias :proper_statem, as: Statem
  alias :proper_types, as: Gen
  alias ExternalService.{BreakerModel, Native}

  # About ten commands each, of which there are to be a hundred thousand.
  @sequences max(11_000, String.to_integer(System.get_env("SEQUENCES", "0")))
  @commands 100_000

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
        {10, call(:admit, [])},
        {2, call(:admit_and_die, [])},
        {2, call(:melt, [])},
        {8, call(:advance, [Gen.integer(1, 25)])},
        {1, call(:open, [Gen.oneof([:infinity, Gen.integer(1, 50)])])},
        {1, call(:close, [])},
        {1, call(:bypass, [])},
        {1, call(:reset, [])}
      ] ++ reports(model.permits)
    )
  end

  # Old permits are reported as well, and any of them twice.
  defp reports([]), do: []
  defp reports(permits), do: [{12, call(:report, [Gen.oneof(Enum.map(permits, &elem(&1, 0))), outcome(), duration()])}]

  defp outcome, do: Gen.frequency([{4, :failure}, {3, :success}, {1, :ignore}])
  defp duration, do: Gen.oneof([0, 9, 10, 100])
  defp call(name, arguments), do: {:call, __MODULE__, name, arguments}

  def precondition(model, {:call, _, :report, [permit | _]}), do: List.keymember?(model.permits, permit, 0)
  def precondition(_model, _call), do: true

  def next_state(model, answer, call) do
    case expected(model, call) do
      {:admitted, model, permit} -> %{model | permits: [{answer, permit} | Enum.take(model.permits, 5)]}
      {_answer, model, _permit} -> model
    end
  end

  def postcondition(model, call, answer) do
    {expected, model, _permit} = expected(model, call)
    kind(call, answer) == expected and shows?(model)
  end

  defp kind({:call, _, :admit, _}, {:open, _retry_after}), do: :refused
  defp kind({:call, _, :admit, _}, _permit), do: :admitted
  defp kind(_call, answer), do: answer

  defp shows?(model) do
    expected = BreakerModel.look(model)
    # A dead holder's probe comes back soon, the rest is so at once.
    soon(fn -> Map.take(Native.breaker_look(breaker()), Map.keys(expected)) == expected end)
  end

  defp expected(model, {:call, _, :admit, []}), do: BreakerModel.admit(model)

  defp expected(model, {:call, _, :admit_and_die, []}) do
    case BreakerModel.admit(model) do
      {:admitted, model, permit} -> {:done, BreakerModel.lose(model, permit), nil}
      {:refused, model, nil} -> {:done, model, nil}
    end
  end

  defp expected(model, {:call, _, :report, [permit, outcome, duration]}) do
    {_var, permit} = List.keyfind(model.permits, permit, 0)
    {:done, BreakerModel.report(model, permit, outcome, duration), nil}
  end

  defp expected(model, {:call, _, :open, [time]}), do: {:done, BreakerModel.open_by_hand(model, time), nil}
  defp expected(model, {:call, _, name, arguments}), do: {:done, apply(BreakerModel, name, [model | arguments]), nil}

  ## The same on the real thing

  def admit do
    case Native.breaker_admit(breaker()) do
      {:changed, permit} -> permit
      answer -> answer
    end
  end

  def admit_and_die do
    breaker = breaker()
    {_pid, ref} = spawn_monitor(fn -> Native.breaker_admit(breaker) end)
    receive do: ({:DOWN, ^ref, _, _, :normal} -> :done)
  end

  def report(permit, outcome, duration), do: done(Native.breaker_report(breaker(), permit, outcome, duration))
  def melt, do: done(Native.breaker_melt(breaker()))
  def open(time), do: done(Native.breaker_open(breaker(), time, nil))
  def close, do: done(Native.breaker_close(breaker()))
  def bypass, do: done(Native.breaker_bypass(breaker()))
  def reset, do: done(Native.breaker_reset(breaker()))
  def advance(time), do: done(Native.clock_advance(clock(), time))

  defp done(answer) when answer in [:ok, :changed], do: :done

  defp breaker, do: Process.get(:breaker)
  defp clock, do: Process.get(:clock)

  ## The properties

  defp config do
    rules =
      Gen.oneof([
        %{tolerate: 2},
        %{failure_rate: 500_000},
        %{failure_rate: 600_000, window_time: 50, window_calls: 0},
        %{slow_rate: 500_000},
        %{consecutive: 3},
        %{tolerate: 3, failure_rate: 700_000, slow_rate: 700_000, consecutive: 4}
      ])

    probes =
      Gen.oneof([
        %{},
        %{probes: 1, successes: 1},
        %{probes: 3, successes: 1},
        %{probes: 1, successes: 3, reset_factor: 2_000_000},
        %{probes: 2, successes: 2, reset_factor: 1_500_000}
      ])

    Gen.bind({rules, probes}, fn {rules, probes} -> @off |> Map.merge(rules) |> Map.merge(probes) end, false)
  end

  defp commands, do: Gen.bind(config(), &Statem.commands(__MODULE__, BreakerModel.new(&1)), false)

  defp run([{:init, model} | _] = commands) do
    Process.put(:clock, Native.clock_new(0))
    Process.put(:breaker, Native.breaker_new(model.config, clock()))
    Statem.run_commands(__MODULE__, commands)
  end

  @tag :property
  @tag timeout: :infinity
  test "any sequence of events leaves the breaker as the plain rules say" do
    ran = :counters.new(1, [])

    check(commands(), @sequences, fn commands ->
      :counters.add(ran, 1, length(commands) - 1)
      {_history, _model, result} = run(commands)
      result == :ok
    end)

    assert :counters.get(ran, 1) >= @commands
  end

  @tag :property
  @tag timeout: :infinity
  test "from every state but one forced for ever, some time and one call lead out" do
    check(commands(), 500, fn commands ->
      {_history, model, :ok} = run(commands)
      advance(1_000)
      forced? = model.state == :forced_open and model.until == :infinity
      admitted? = not match?({:open, _}, admit())
      admitted? == not forced?
    end)
  end
end
