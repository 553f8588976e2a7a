defmodule ExternalService.Endpoints.Seat do
  # The breaker of the endpoint that an attempt goes to, as the pipeline reports to it: under the endpoint's name, and so
  # that the balancer hears what it has to know.
  @moduledoc false

  alias ExternalService.Endpoints.Endpoint
  alias ExternalService.Native

  @type t :: {module(), {Endpoint.t(), probe? :: boolean()}}

  @spec new(Endpoint.t(), term()) :: t()
  def new(%Endpoint{} = member, permit), do: {__MODULE__, {member, is_tuple(permit)}}

  # A probe that is back leaves its place to the next one, or has closed the breaker: a call will tell.
  def report(_service, {%Endpoint{handle: handle} = member, probe?}, permit, outcome, duration) do
    with {backend, config} <- member.breaker, do: backend.report(member.name, config, permit, outcome, duration)
    if member.busy? and outcome != :ignore, do: Native.endpoint_took(handle, duration)
    if probe?, do: Native.endpoint_let_in(handle)
    :ok
  end
end
