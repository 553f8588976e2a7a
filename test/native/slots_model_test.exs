# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Native.SlotsModelTest do
  # Slots in the hands of processes, against a model that keeps lists: any sequence of acquisitions, returns, deaths,
  # waits that end, resets and other limits leaves both alike, and wakes the same waiters.
  use ExternalService.Case, async: true
  import ExternalService.Callers, only: [soon: 1]

  alias :proper_statem, as: Statem
  alias :proper_types, as: Gen
  alias ExternalService.{Native, SlotsModel}

  @sequences max(1500, String.to_integer(System.get_env("SEQUENCES", "0")) |> div(100))

  @clients 1..4
  @lease 100

  ## What PropEr asks for

  def initial_state, do: SlotsModel.new({1, 1, :infinity})

  def command(model) do
    Gen.frequency([
      {8, call(:acquire, [client(), Gen.oneof([:now, :wait])])},
      {6, call(:release, [client()])},
      {4, call(:leave, [client()])},
      {2, call(:kill, [client()])},
      {1, call(:set, [limit(), places()])},
      {1, call(:reset, [])}
      | if(model.lease == :infinity,
          do: [],
          else: [{3, call(:advance, [Gen.integer(1, @lease)])}, {1, call(:grant, [])}]
        )
    ])
  end

  defp call(name, arguments), do: {:call, __MODULE__, name, arguments}
  defp client, do: Gen.integer(1, 4)
  defp limit, do: Gen.integer(1, 4)
  defp places, do: Gen.integer(0, 4)

  # A process that waits does nothing else.
  def precondition(model, {:call, _, name, [client | _]}) when name in [:acquire, :release],
    do: not SlotsModel.waits?(model, client)

  def precondition(model, {:call, _, :leave, [client]}), do: SlotsModel.waits?(model, client)
  def precondition(_model, _call), do: true

  def next_state(model, _answer, call), do: model |> expected(call) |> elem(1)

  def postcondition(model, call, answer) do
    {expected, model} = expected(model, call)
    answer == expected and same?(model, call)
  end

  # What the death of a process brings about comes soon, the rest at once.
  defp same?(model, {:call, _, :kill, _}), do: soon(fn -> same?(model) end)
  defp same?(model, _call), do: same?(model)

  defp same?(model) do
    counts = {model.limit, SlotsModel.in_flight(model), SlotsModel.queued(model)}

    Tuple.delete_at(Native.bulkhead_counts(slots()), 3) == counts and
      Enum.filter(@clients, &told?/1) == Enum.sort(model.called)
  end

  defp told?(client), do: Process.info(process(client), :message_queue_len) == {:message_queue_len, 1}

  defp expected(model, {:call, _, :acquire, [client, mode]}), do: SlotsModel.acquire(model, client, mode)
  defp expected(model, {:call, _, :leave, [client]}), do: SlotsModel.leave(model, client)
  defp expected(model, {:call, _, name, arguments}), do: {:ok, apply(SlotsModel, model_name(name), [model | arguments])}

  defp model_name(:grant), do: :let_in
  defp model_name(name), do: name

  ## The same on the real thing: the clients are processes, each with its holder

  def acquire(client, mode), do: ask(client, {:acquire, mode})
  def release(client), do: ask(client, :release)
  def leave(client), do: ask(client, :leave)

  def kill(client) do
    ref = Process.monitor(process(client))
    Process.exit(process(client), :kill)
    receive do: ({:DOWN, ^ref, _, _, :killed} -> start_client(client))
  end

  def set(limit, places), do: done(Native.bulkhead_set(slots(), limit, places))
  def reset, do: done(Native.bulkhead_reset(slots()))
  def grant, do: done(Native.bulkhead_grant(slots()))
  def advance(ns), do: Native.clock_advance(Process.get(:clock), ns)

  defp done({_ended, _lease_end, :done}), do: :ok

  defp slots, do: Process.get(:slots)
  defp process(client), do: Process.get({:client, client})

  defp ask(client, question) do
    send(process(client), {self(), question})
    receive do: ({:answer, answer} -> answer)
  end

  defp start_client(client) do
    slots = slots()
    Process.put({:client, client}, spawn(fn -> client(slots, Native.holder_new(), nil) end))
    :ok
  end

  defp client(slots, holder, token) do
    receive do
      {pid, {:acquire, mode}} ->
        {answer, token} = taken(Native.bulkhead_acquire(slots, holder, mode))
        send(pid, {:answer, answer})
        client(slots, holder, token)

      {pid, :release} ->
        send(pid, {:answer, Native.bulkhead_release(slots, holder)})
        client(slots, holder, token)

      {pid, :leave} ->
        send(pid, {:answer, left(Native.bulkhead_leave(holder), token)})
        client(slots, holder, nil)
    end
  end

  defp taken(answer) when is_tuple(answer) and elem(answer, 0) == :queued, do: {:queued, elem(answer, 1)}
  defp taken(:full), do: {:full, nil}
  defp taken(:ok), do: {:taken, nil}
  defp taken({:reclaimed, _leases, answer}), do: taken(answer)

  # Whose turn had come also has the message that says so.
  defp left(:left, _token), do: :left

  defp left(:granted, token) do
    receive do
      {:external_service_slot, ^token} -> :granted
    after
      0 -> :granted_without_a_message
    end
  end

  ## The property

  defp commands do
    config = {limit(), places(), Gen.oneof([:infinity, @lease])}
    Gen.bind(config, &Statem.commands(__MODULE__, SlotsModel.new(&1)), false)
  end

  defp follows?([{:init, model} | _] = commands) do
    Process.put(:clock, Native.clock_new(0))
    Process.put(:slots, Native.bulkhead_new({model.limit, model.places, model.lease}, Process.get(:clock), nil))
    Enum.each(@clients, &start_client/1)
    {_history, _model, result} = Statem.run_commands(__MODULE__, commands)
    Enum.each(@clients, &Process.exit(process(&1), :kill))
    result == :ok and soon(fn -> match?({_limit, 0, 0, _lease_end}, Native.bulkhead_counts(slots())) end)
  end

  @tag :property
  @tag timeout: :infinity
  test "any sequence of events leaves the slots as the plain rules say" do
    check(commands(), @sequences, &follows?/1)
  end
end
