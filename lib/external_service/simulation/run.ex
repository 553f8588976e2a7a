defmodule ExternalService.Simulation.Run do
  # Clients that call a service, from the first call to the last: one thing happens after the other, each at its time.
  @moduledoc false

  alias ExternalService.Native
  alias ExternalService.Simulation.{Layers, Pace, World}

  @doc "Runs the calls of a world's clients to their end."
  @spec run(World.t()) :: World.t()
  def run(%World{clients: clients, slots: slots, pace: pace} = world) do
    Enum.reduce(0..(clients - 1), world, fn index, world ->
      client = Layers.client(index, slots && Native.holder_new())
      World.at(world, Pace.first(pace, index, clients), {:call, client})
    end)
    |> go_on()
  end

  defp go_on(world) do
    case World.next(world) do
      {:over, world} -> world
      {event, world} -> event |> happen(world) |> go_on()
    end
  end

  defp happen({:attempt, client}, world), do: Layers.attempt(world, client)
  defp happen({:ended, client, outcome, took}, world), do: Layers.ended(world, client, outcome, took)
  defp happen({:over, client, told}, world), do: over(world, client, told)
  defp happen({:turn, client}, world), do: Layers.slotted(world, client)
  defp happen({:slot, client}, world), do: Layers.begin(world, client)
  defp happen({:tired, came}, world), do: Layers.tired(world, came)
  defp happen(:lease, world), do: Layers.lease_over(world)

  defp happen({:call, client}, world) do
    if World.open_for_calls?(world), do: Layers.call(world, client), else: gone(world)
  end

  defp happen(:look, %World{breaker: breaker} = world) do
    Native.breaker_look(breaker)
    World.changed(world)
  end

  defp over(%World{now: now, pace: pace} = world, %{began: began} = client, told) do
    {at, pace} = Pace.next(pace, began, now, told)
    world = World.call_over(world, began, pace)

    if at == :never or not World.open_for_calls?(world),
      do: gone(world),
      else: World.at(world, at, {:call, client})
  end

  defp gone(%World{clients: clients} = world), do: %{world | clients: clients - 1}
end
