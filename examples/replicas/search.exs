defmodule Replicas.Search do
  @moduledoc """
  The module an application would write: the client of a search that three servers offer.

  The function given to `call/1` gets the server that the balancer chose. Four failures in a row, and that server is out. The
  others take its calls until an ordinary call, its probe, comes back well; then its share grows from a tenth to all that
  it would have. A call that fails is repeated at another server, so that a caller notices nothing of it.

  What the servers are, and how long its times are, is told when it is started.
  """

  use ExternalService,
    circuit_breaker: [consecutive: 4, half_open: true],
    retry: [max_attempts: 3, base: 1]

  alias Replicas.Connection

  @doc "Asks one of the servers."
  def find do
    call(fn {_name, port} ->
      case Connection.get(port, "/search") do
        {:ok, 200, body} -> {:ok, body}
        {:ok, status, _body} -> {:retry, {:status, status}}
        {:error, reason} -> {:retry, reason}
      end
    end)
  end
end
