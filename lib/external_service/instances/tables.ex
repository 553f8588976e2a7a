defmodule ExternalService.Instances.Tables do
  # Owns the tables of instances, so that they outlive whoever asks for the first. It is asked once for each service, when
  # its first instance is made, and again if it has died since; without it calls work as well, and instances are not
  # remembered.
  @moduledoc false

  use GenServer

  alias ExternalService.Service

  @spec start_link(term()) :: GenServer.on_start()
  def start_link(_arguments), do: GenServer.start_link(__MODULE__, nil, name: __MODULE__)

  @doc "Returns the service with its table, made with these rows if it has none yet."
  @spec of(Service.t(), [tuple()]) :: Service.t()
  def of(%Service{name: name} = service, rows) do
    case GenServer.call(__MODULE__, {:table, name, rows}) do
      %Service{} = with_table -> with_table
      nil -> service
    end
  catch
    :exit, _not_running -> service
  end

  @impl true
  def init(nil), do: {:ok, nil}

  # One after the other, so that there is one table; the service may have been stopped meanwhile.
  @impl true
  def handle_call({:table, name, rows}, _from, nil),
    do: {:reply, Service.alone(name, fn -> with_table(name, rows) end), nil}

  defp with_table(name, rows) do
    with %Service{instances: table} = service <- Service.started(name),
         do: if(:ets.info(table, :size) == :undefined, do: add(service, rows), else: service)
  end

  defp add(service, rows) do
    table = :ets.new(__MODULE__, [:set, :public, write_concurrency: true])
    :ets.insert(table, rows)
    service = %{service | instances: table}
    Service.put(service)
    service
  end
end
