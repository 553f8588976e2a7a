defmodule ExternalService.CircuitBreaker.Permit do
  @moduledoc """
  What `ExternalService.CircuitBreaker.admit/1` gives and `ExternalService.CircuitBreaker.report/2` takes back.
  """

  @enforce_keys [:service, :permit]
  @derive {Inspect, only: []}
  defstruct @enforce_keys

  @opaque t :: %__MODULE__{service: struct(), permit: term()}
end
