defmodule ExternalService.Endpoints.Seat do
  # The breaker of one endpoint as the service's: for the attempt that goes there, and for who names the endpoint. It
  # acts under the endpoint's name, and what lets calls through again lets the balancer send some, too.
  @moduledoc false

  alias ExternalService.Endpoints.Endpoint
  alias ExternalService.Native

  @type t :: {module(), Endpoint.t()}

  @spec new(Endpoint.t()) :: t()
  def new(%Endpoint{} = member), do: {__MODULE__, member}

  # A probe that is back leaves its place to the next one, or has closed the breaker: a call will tell.
  def report(_service, %Endpoint{handle: handle} = member, permit, outcome, duration) do
    with {backend, config} <- member.breaker, do: backend.report(member.name, config, permit, outcome, duration)
    if member.busy? and outcome != :ignore, do: Native.endpoint_took(handle, duration)
    if is_tuple(permit), do: Native.endpoint_let_in(handle)
    :ok
  end

  def admit(_service, member), do: Endpoint.admit(member)
  def look(_service, member), do: Endpoint.look(member)
  def ask(_service, member), do: via(member, :ask, [])
  def melt(_service, member), do: via(member, :melt, [])
  # It may be open for a shorter time than it was.
  def open(_service, member, options), do: let_in(member, via(member, :open, [options]))
  def reset(_service, member), do: let_in(member, via(member, :reset, []))
  def close(_service, member), do: let_in(member, via(member, :close, []))
  def bypass(_service, member), do: let_in(member, via(member, :bypass, []))

  defp let_in(%Endpoint{handle: handle}, :ok), do: Native.endpoint_let_in(handle)
  defp let_in(_member, refusal), do: refusal

  # Not every backend has all of these.
  defp via(%Endpoint{breaker: {backend, config}, name: name}, function, arguments) do
    if function_exported?(backend, function, 2 + length(arguments)),
      do: apply(backend, function, [name, config | arguments]),
      else: {:error, :not_found}
  end
end
