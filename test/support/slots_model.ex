# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.SlotsModel do
  @moduledoc """
  What a bulkhead is to do, in the plainest way: lists of who holds a permit and who waits.

  `held` are the permits given out, oldest first, as `{permit, time}`; `stacks` is what each client has, latest first,
  permits that mean nothing any more included; `queue` is who waits, `called` is whose turn came while it waited.
  """

  defstruct [:limit, :places, :lease, held: [], stacks: %{}, queue: [], called: [], now: 0, next: 0]

  def new({limit, places, lease}), do: %__MODULE__{limit: limit, places: places, lease: lease}

  def in_flight(model), do: length(model.held)
  def queued(model), do: length(model.queue)
  def waits?(model, client), do: client in model.queue or client in model.called

  @doc "The model after an acquisition, and the answer to it."
  def acquire(model, client, mode) do
    model = let_in(model)
    model = if model.queue == [], do: reclaim(model), else: model

    cond do
      model.queue == [] and room?(model) -> {:taken, give(model, client)}
      mode == :wait and length(model.queue) < model.places -> {:queued, %{model | queue: model.queue ++ [client]}}
      true -> {:full, model}
    end
  end

  @doc "The model after the client gave back the permit it got last, if it has one."
  def release(model, client) do
    case Map.get(model.stacks, client, []) do
      [] -> model
      [permit | rest] -> hand_back(%{model | stacks: Map.put(model.stacks, client, rest)}, permit)
    end
  end

  @doc "The model after a waiting client has left the queue, and whether its turn had come."
  def leave(model, client) do
    if client in model.called,
      do: {:granted, %{model | called: List.delete(model.called, client)}},
      else: {:left, %{model | queue: List.delete(model.queue, client)}}
  end

  @doc "The model after the client has died: it leaves the queue and gives back all it has."
  def kill(model, client) do
    {_turn, model} = leave(model, client)
    Enum.reduce(Map.get(model.stacks, client, []), model, fn _permit, model -> release(model, client) end)
  end

  def set(model, limit, places), do: let_in(%{model | limit: limit, places: places})
  def reset(model), do: let_in(%{model | held: []})
  def advance(model, ns), do: %{model | now: model.now + ns}

  @doc "The model after everybody was let in for whom there is room, ended leases included."
  def let_in(%{queue: []} = model), do: model

  def let_in(model) do
    model = reclaim(model)
    if room?(model), do: model |> serve() |> let_in(), else: model
  end

  defp room?(model), do: length(model.held) < model.limit

  # The oldest waiter gets a permit.
  defp serve(%{queue: [client | queue]} = model) do
    give(%{model | queue: queue, called: [client | model.called]}, client)
  end

  defp give(model, client) do
    stack = [model.next | Map.get(model.stacks, client, [])]
    held = model.held ++ [{model.next, model.now}]
    %{model | held: held, stacks: Map.put(model.stacks, client, stack), next: model.next + 1}
  end

  defp hand_back(model, permit) do
    case List.keytake(model.held, permit, 0) do
      nil -> model
      {_held, rest} -> serve_next(%{model | held: rest})
    end
  end

  defp serve_next(model), do: if(model.queue != [] and room?(model), do: serve(model), else: model)

  # While there is no room, the oldest permits whose lease is over are taken from their holders.
  defp reclaim(%{lease: :infinity} = model), do: model

  defp reclaim(model) do
    if not room?(model) and over?(model, hd(model.held)),
      do: reclaim(%{model | held: tl(model.held)}),
      else: model
  end

  defp over?(model, {_permit, taken}), do: model.now - taken >= model.lease
end
