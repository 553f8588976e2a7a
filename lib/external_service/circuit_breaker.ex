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

  Several rules may be given; any of them opens the breaker. When it closes again its windows are empty.

  ### Options of `:half_open`

  #{ExternalService.Options.docs(:half_open)}

  ### Options of `:reset_backoff`

  #{ExternalService.Options.docs(:reset_backoff)}

  ## Failures seen outside of a call

  `admit/1` and `report/2` are the two halves of what a call does, for code that can not be put into a function: a
  socket, a stream, a pool. `melt/1` counts a failure without them.

      iex> ExternalService.start(:socket, circuit_breaker: [consecutive: 1])
      iex> {:ok, permit} = ExternalService.CircuitBreaker.admit(:socket)
      iex> ExternalService.CircuitBreaker.report(permit, :failure)
      :ok
      iex> {:error, %ExternalService.CircuitBreakerOpen{}} = ExternalService.CircuitBreaker.admit(:socket)
      iex> ExternalService.state(:socket)
      :open

  ## Other backends

  The breaker of a service is `ExternalService.CircuitBreaker.Local`, which lives on the node that made it. A module with
  this behaviour can take its place: `circuit_breaker: [backend: {MyBreaker, nodes: 3}]`. Its callbacks run in the calling
  process, on every call.
  """

  alias ExternalService.CircuitBreaker.{Installed, Permit}
  alias ExternalService.{CircuitBreakerOpen, Instances, Service, ServiceNotStarted, Telemetry}

  # What the core's clock can count, in nanoseconds.
  @longest 0x7FFF_FFFF_FFFF_FFFF

  @type service :: ExternalService.service()

  @typedoc "What `c:install/2` returned; handed to every other callback."
  @type config :: term()

  @typedoc "What a backend admitted an attempt with; handed back with its outcome. A tuple is a probe's."
  @type backend_permit :: term()

  @type outcome :: :success | :failure | :ignore

  @typedoc "Milliseconds until another attempt may be let through; `nil` where the backend does not tell."
  @type retry_after :: non_neg_integer() | :infinity | nil

  @doc """
  Makes the breaker of a service that is being started.

  The options are `:tolerate`, `:within`, `:reset`, any other option of a breaker that differs from its default, `:clock`
  where there is one, and the backend's own.
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
  @callback admit(service(), config()) :: {:ok, backend_permit()} | {:open, retry_after()}

  @doc """
  Hears how an admitted attempt ended and how many nanoseconds it took, 0 if that is unknown.

  A backend without it hears of failures through `c:melt/2`. One with it hears of what `c:watch/1` says, and of every
  outcome of a probe.
  """
  @callback report(service(), config(), backend_permit(), outcome(), duration :: non_neg_integer()) :: :ok

  @doc "Says what has to be reported, given the breaker's options. Without it: failures."
  @callback watch(keyword()) :: :failures | :outcomes | :durations

  @doc "Shows its `:state`, and what else `ExternalService.counts/1` is made of. Without it: what `c:ask/2` says."
  @callback look(service(), config()) :: %{required(:state) => ExternalService.state(), optional(atom()) => term()}

  @doc "Forces it open; the options are those of `ExternalService.open/2`."
  @callback open(service(), config(), keyword()) :: :ok

  @doc "Closes it, whatever state it is in."
  @callback close(service(), config()) :: :ok

  @doc "Lets every call through until it is closed."
  @callback bypass(service(), config()) :: :ok

  @doc """
  Takes over from `old`, whose place it is taking, a state set by hand. Returns whether there was one.

  A backend with it has `c:look/2`, `c:close/2` and `c:retire/2`, too.
  """
  @callback inherit(service(), config(), old :: config()) :: boolean()

  @doc "Falls silent: a breaker with the same state has its place."
  @callback retire(service(), config()) :: :ok

  @doc "Takes the place of `old`, a breaker of the same backend, by itself: see to what becomes of that."
  @callback succeed(service(), config(), old :: config()) :: :ok

  @doc "Returns whether it has nothing to remember, so that a new one would do in its place. Without it: whether it is closed."
  @callback idle?(service(), config()) :: boolean()

  @doc "The same as `c:install/2` for many services with the same options: returns a function that makes their breakers."
  @callback maker(keyword()) :: (service() -> config())

  @optional_callbacks maker: 1,
                      succeed: 3,
                      idle?: 2,
                      admit: 2,
                      report: 5,
                      watch: 1,
                      look: 2,
                      open: 3,
                      close: 2,
                      bypass: 2,
                      inherit: 3,
                      retire: 2

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
  Asks to be let through, for a call that is made outside of `ExternalService.call/2`.

  `{:ok, permit}` is to be followed by `report/2`, once. A permit that was handed out while half-open belongs to the
  process that got it, and is given back when that process dies.
  """
  @spec admit(service()) ::
          {:ok, Permit.t()}
          | {:error, ExternalService.CircuitBreakerOpen.t() | ExternalService.ServiceNotStarted.t()}
  def admit(service) do
    case Service.get(service) do
      nil -> {:error, %ServiceNotStarted{context: %{service: service}}}
      installed -> admit_to(installed)
    end
  end

  defp admit_to(%Service{name: name} = service) do
    case Installed.enter(service) do
      {:ok, permit} ->
        {:ok, Permit.new(service, permit)}

      {:open, retry_after} ->
        Telemetry.blown(name)
        {:error, %CircuitBreakerOpen{context: %{service: name, retry_after: retry_after}}}
    end
  end

  @doc """
  Says how an admitted call ended, and how many milliseconds it took.

  `:ignore` says nothing about the service. Reporting again, late, or after the breaker has changed does nothing.
  """
  @spec report(Permit.t(), outcome(), non_neg_integer()) :: :ok
  def report(%Permit{service: service} = permit, outcome, duration \\ 0)
      when outcome in [:success, :failure, :ignore] and is_integer(duration) and duration >= 0 do
    if Permit.first_report?(permit) do
      Installed.settle(service, permit.permit, outcome, min(duration * 1_000_000, @longest))
      if outcome == :failure, do: Instances.keep(service)
    end

    :ok
  end

  @doc """
  Counts a failure of the service that was seen outside of a call.

  Returns `{:error, :not_found}` if the service is not started.
  """
  @spec melt(service()) :: :ok | {:error, :not_found}
  def melt(service) do
    case Service.get(service) do
      %Service{breaker: {backend, config}} -> backend.melt(service, config)
      %Service{breaker: nil} -> :ok
      nil -> {:error, :not_found}
    end
  end

  @doc """
  Closes the service's breaker and forgets its failures.

  Returns `{:error, :not_found}` if the service is not started.
  """
  @spec reset(service()) :: :ok | {:error, :not_found}
  def reset(service), do: Installed.act(service, :reset, [])
end
