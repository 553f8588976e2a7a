# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Recorder do
  @moduledoc """
  Forwards a service's events to the test that attached it, as `{name, measurements, metadata}`, the name without its
  `:external_service`.

  Each event is stamped where it is emitted, so `events/0` gives them in the order of emission even when several
  processes emit.
  """

  alias ExternalService.Telemetry

  @events [
    [:call, :start],
    [:call, :stop],
    [:call, :exception],
    [:call, :retry],
    [:circuit_breaker, :blown],
    [:circuit_breaker, :opened],
    [:circuit_breaker, :closed]
  ]

  @doc "Records `events` of the service until the test ends, and returns the handler's id."
  def attach(service, events \\ @events) do
    id = {__MODULE__, make_ref()}
    names = Enum.map(events, &[:external_service | &1])
    :ok = Telemetry.attach_many(id, names, &__MODULE__.handle/4, {self(), service})
    ExUnit.Callbacks.on_exit(fn -> Telemetry.detach(id) end)
    id
  end

  @doc false
  def handle([:external_service | name], measurements, %{service: service} = metadata, {pid, service}) do
    send(pid, {:recorded, :erlang.unique_integer([:monotonic]), {name, measurements, metadata}})
  end

  def handle(_event, _measurements, _metadata, _config), do: :ok

  @doc "The events recorded so far, in order; each is told once."
  def events, do: collect() |> Enum.sort() |> Enum.map(fn {_stamp, event} -> event end)

  @doc "The names of the events recorded so far, in order."
  def names, do: Enum.map(events(), fn {name, _measurements, _metadata} -> name end)

  @doc "The measurements and metadata of the one event of that name, merged."
  def one(name) do
    [{measurements, metadata}] = for {^name, measurements, metadata} <- events(), do: {measurements, metadata}
    Map.merge(metadata, measurements)
  end

  defp collect do
    receive do
      {:recorded, stamp, event} -> [{stamp, event} | collect()]
    after
      0 -> []
    end
  end
end
