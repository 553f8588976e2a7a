defmodule ExternalService.Application do
  # No process is asked on the way of a call. The one there is owns the tables of instances.
  @moduledoc false

  use Application

  @impl true
  def start(_type, _arguments) do
    Supervisor.start_link([ExternalService.Instances.Tables], strategy: :one_for_one, name: __MODULE__.Supervisor)
  end
end
