defmodule ExternalService.CircuitBreaker.Permit do
  @moduledoc """
  What `ExternalService.CircuitBreaker.admit/1` gives and `ExternalService.CircuitBreaker.report/2` takes back.
  """

  @enforce_keys [:service, :permit, :reported]
  @derive {Inspect, only: []}
  defstruct @enforce_keys

  @type t :: %__MODULE__{service: struct(), permit: term(), reported: :atomics.atomics_ref()}

  @doc false
  @spec new(struct(), term()) :: t()
  def new(service, permit), do: %__MODULE__{service: service, permit: permit, reported: :atomics.new(1, [])}

  # Whoever reports first reports, in whatever process; everybody after that has nothing to say.
  @doc false
  @spec first_report?(t()) :: boolean()
  def first_report?(%__MODULE__{reported: reported}), do: :atomics.exchange(reported, 1, 1) == 0
end
