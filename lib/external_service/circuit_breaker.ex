defmodule ExternalService.CircuitBreaker do
  @moduledoc """
  Stops calling a service that keeps failing.

  A breaker counts the failures of its service. While they stay within what is tolerated it is closed and lets every call
  through; the failure after that opens it, and for `:reset` milliseconds calls are refused at once, with
  `ExternalService.CircuitBreakerOpen`, instead of adding to the trouble.

      iex> ExternalService.start(:printer, circuit_breaker: [tolerate: 1, within: 10_000, reset: 30_000])
      iex> for _ <- 1..2, do: ExternalService.call(:printer, [max_attempts: 1], fn -> :retry end)
      iex> {:error, error} = ExternalService.call(:printer, fn -> :printed end)
      iex> error.__struct__
      ExternalService.CircuitBreakerOpen

  ## Options

  #{ExternalService.Options.docs(:circuit_breaker)}

  A failure counts while it is younger than `:within`. When the breaker closes again its window is empty.

  ## Other backends

  The breaker of a service is `ExternalService.CircuitBreaker.Local`, which lives on the node that made it. A module with
  this behaviour can take its place: `circuit_breaker: [backend: {MyBreaker, nodes: 3}]`. Its callbacks run in the calling
  process, on every call.
  """

  alias ExternalService.CircuitBreaker.Basic
  alias ExternalService.Service

  @type service :: ExternalService.service()

  @typedoc "What `c:install/2` returned; handed to every other callback."
  @type config :: term()

  @typedoc "What an attempt was admitted with; handed back with its outcome."
  @type permit :: term()

  @typedoc "A backend and its config; `nil` is a service without a breaker."
  @type t :: {module(), config()} | nil

  @typedoc "Milliseconds until another attempt may be let through; `nil` where the backend does not tell."
  @type retry_after :: non_neg_integer() | :infinity | nil

  @doc """
  Makes the breaker of a service that is being started.

  The options are `:tolerate`, `:within`, `:reset`, `:fault_injection` and `:clock` where they are given, and the
  backend's own.
  """
  @callback install(service(), keyword()) :: {:ok, config()}

  @doc "Says whether a call may go out."
  @callback ask(service(), config()) :: :ok | :blown

  @doc "Counts a failure."
  @callback melt(service(), config()) :: :ok

  @doc "Closes the breaker and forgets its failures."
  @callback reset(service(), config()) :: :ok | {:error, :not_found}

  @doc "Takes the breaker away: its service has been stopped, or started again with another."
  @callback remove(service(), config()) :: :ok

  @doc "Lets an attempt through or refuses it. A backend without it is asked with `c:ask/2`."
  @callback admit(service(), config()) :: {:ok, permit()} | {:open, retry_after()}

  @doc "Hears how an admitted attempt ended. A backend without it hears of failures through `c:melt/2`."
  @callback report(service(), config(), permit(), :failure) :: :ok

  @doc "Says what state the breaker is in. A backend without it is asked with `c:ask/2`."
  @callback state(service(), config()) :: ExternalService.state()

  @optional_callbacks admit: 2, report: 4, state: 2

  @doc """
  Returns whether a call to the service would be let through now: `:ok`, `:blown`, or `:not_started`.
  """
  @spec ask(service()) :: :ok | :blown | :not_started
  def ask(service) do
    case Service.get(service) do
      nil -> :not_started
      %Service{breaker: nil} -> :ok
      %Service{breaker: {backend, config}} -> backend.ask(service, config)
    end
  end

  @doc """
  Counts a failure of the service that was seen outside of a call.

  Returns `{:error, :not_found}` if the service is not started.
  """
  @spec melt(service()) :: :ok | {:error, :not_found}
  def melt(service) do
    case Service.get(service) do
      nil -> {:error, :not_found}
      %Service{breaker: nil} -> :ok
      %Service{breaker: {backend, config}} -> backend.melt(service, config)
    end
  end

  @doc """
  Closes the service's breaker and forgets its failures.

  Returns `{:error, :not_found}` if the service is not started.
  """
  @spec reset(service()) :: :ok | {:error, :not_found}
  def reset(service) do
    case Service.get(service) do
      nil -> {:error, :not_found}
      %Service{breaker: nil} -> :ok
      %Service{breaker: {backend, config}} -> backend.reset(service, config)
    end
  end

  @doc false
  @spec state(service()) :: ExternalService.state() | {:error, :not_found}
  def state(service) do
    case Service.get(service) do
      nil -> {:error, :not_found}
      %Service{breaker: nil} -> :closed
      %Service{breaker: {backend, config}} -> backend.state(service, config)
    end
  end

  # The pipeline's way in and out of the breaker, for a service it already holds.
  @doc false
  @spec admit(Service.t()) :: {:ok, permit()} | {:open, retry_after()}
  def admit(%Service{breaker: nil}), do: {:ok, nil}
  def admit(%Service{name: name, breaker: {backend, config}}), do: backend.admit(name, config)

  @doc false
  @spec report(Service.t(), permit(), :failure) :: :ok
  def report(%Service{breaker: nil}, _permit, _outcome), do: :ok

  def report(%Service{name: name, breaker: {backend, config}}, permit, outcome),
    do: backend.report(name, config, permit, outcome)

  # Makes the breaker that the options of a service describe.
  @doc false
  @spec install(service(), keyword()) :: t()
  def install(service, options) do
    {backend, own} = backend(options)
    shared = Keyword.take(options, [:tolerate, :within, :reset, :fault_injection, :clock])

    unless options[:tolerate] == :infinity do
      {:ok, config} = backend.install(service, shared ++ own)
      if function_exported?(backend, :admit, 2), do: {backend, config}, else: {Basic, {backend, config}}
    end
  end

  @doc false
  @spec remove(service(), t()) :: :ok
  def remove(_service, nil), do: :ok
  def remove(service, {backend, config}), do: backend.remove(service, config)

  # A backend and its own options; those it shares with every backend override the service's.
  @doc false
  @spec backend(keyword()) :: {module(), keyword()}
  def backend(options) do
    case options[:backend] do
      {module, own} -> {module, own}
      module -> {module, []}
    end
  end
end
