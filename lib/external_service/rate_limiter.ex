defmodule ExternalService.RateLimiter do
  @moduledoc """
  Keeps the calls to a service below a rate.

      iex> ExternalService.start(:geocoder, rate_limit: [limit: 10, per: :timer.seconds(1), wait: 500])
      iex> ExternalService.call(:geocoder, fn -> {:ok, {52.5, 13.4}} end)
      {:ok, {52.5, 13.4}}

  Ten calls may go out at once, and from then on one every tenth of a second. A call that comes too early waits for its
  turn if that comes within `:wait` milliseconds; otherwise it is refused at once with `ExternalService.RateLimited`, whose
  `context.retry_after` says how long to stay away. A refusal is no failure: it is not retried and does not melt the
  breaker.

  ## Options

  #{ExternalService.Options.docs(:rate_limit)}

  ## Other backends

  The limiter of a service is `ExternalService.RateLimiter.Local`, which limits the calls of one node. A module with this
  behaviour can take its place: `rate_limit: [limit: 10, per: 1_000, backend: {MyLimiter, table: :limits}]`.
  """

  require Logger

  alias ExternalService.RateLimiter.Basic
  alias ExternalService.{RateLimited, Service, ServiceNotStarted, Telemetry, Unit, VirtualClock}

  @enforce_keys [:service, :backend, :config, :made, :sleep, :wait]
  defstruct @enforce_keys

  @type service :: ExternalService.service()
  @type config :: term()

  @typedoc "What `c:give_back/4` needs to know of what was taken."
  @type place :: term()

  @type wait :: non_neg_integer() | :infinity | false
  @type rate_limited :: {:error, ExternalService.RateLimited.t()}

  @type t :: %__MODULE__{
          service: service(),
          backend: module(),
          config: config(),
          made: {module(), keyword()},
          sleep: (non_neg_integer() -> any()),
          wait: wait()
        }

  @doc """
  Makes the limiter of a service that is being started.

  The options are `:limit`, `:per` and, where it is given, `:clock`, and the backend's own.
  """
  @callback init(service(), keyword()) :: {:ok, config()}

  @doc "Takes one from the limit, or says in how many milliseconds to ask again."
  @callback check(service(), config()) :: :ok | {:wait, pos_integer()}

  @doc "The same as `c:check/2`, but takes nothing."
  @callback peek(service(), config()) :: :ok | {:wait, pos_integer()}

  @doc "Gives the whole limit back."
  @callback reset(service(), config()) :: :ok

  @doc """
  Takes `cost` from the limit, or books it ahead if it comes free within `wait`: the caller sleeps once and goes on.

  `{:again, ms}` is for a limiter that can not book: the caller sleeps and asks again. A backend without this callback
  is asked with `c:check/2`, and every call costs it one.
  """
  @callback reserve(service(), config(), cost :: pos_integer(), wait()) ::
              {:ok, place()}
              | {:wait, pos_integer(), place()}
              | {:again, pos_integer()}
              | {:refused, retry_after :: pos_integer() | :infinity}

  @doc "Returns what was taken, with the place it was taken for: the concurrency limit refused the call."
  @callback give_back(service(), config(), cost :: pos_integer(), place()) :: :ok

  @doc "Takes other options while it is in use, and keeps what was taken from the limit."
  @callback change(service(), config(), keyword()) :: {:ok, config()}

  @doc "Returns whether nothing of the limit is used. Without it: whether a call could go."
  @callback idle?(service(), config(), keyword()) :: boolean()

  @optional_callbacks reserve: 4, give_back: 4, change: 3, idle?: 3

  @doc """
  Takes one from the service's limit as a call would, waiting for it as a call would.

      iex> ExternalService.start(:api, rate_limit: [limit: 1, per: 60_000, wait: false])
      iex> ExternalService.RateLimiter.request(:api)
      :ok
      iex> {:error, error} = ExternalService.RateLimiter.request(:api)
      iex> error.context.retry_after
      60_000
  """
  @spec request(service()) :: :ok | rate_limited() | {:error, ExternalService.ServiceNotStarted.t()}
  def request(service) do
    case Service.get(service) do
      nil -> {:error, %ServiceNotStarted{context: %{service: service}}}
      %Service{rate_limit: nil} -> :ok
      %Service{rate_limit: limiter} -> with {:ok, _place} <- take(limiter, 1), do: :ok
    end
  end

  @doc """
  Returns `:ok` if a call could go out now, or `{:wait, ms}`; takes nothing.

  A service without a limit, or that is not started, gives `:ok`.
  """
  @spec peek(service()) :: :ok | {:wait, pos_integer()}
  def peek(service) do
    case Service.get(service) do
      %Service{rate_limit: %__MODULE__{} = limiter} -> limiter.backend.peek(service, limiter.config)
      _unlimited -> :ok
    end
  end

  @doc "Gives the service its whole limit back, or returns `{:error, :not_found}` if it is not started."
  @spec reset(service()) :: :ok | {:error, :not_found}
  def reset(service) do
    case Service.get(service) do
      nil -> {:error, :not_found}
      %Service{rate_limit: nil} -> :ok
      %Service{rate_limit: limiter} -> limiter.backend.reset(service, limiter.config)
    end
  end

  # Makes the limiter that the options of a service describe. `kept` is the one it has now: a backend that can take
  # other options keeps what was used of the limit.
  @doc false
  @spec reconfigure(t() | nil, service(), keyword() | nil, (non_neg_integer() -> any()), VirtualClock.t() | nil) ::
          t() | nil
  def reconfigure(kept, service, options, sleep, clock) do
    unless options == nil or options[:limit] == :infinity do
      {module, own} = backend(options[:backend])
      made = {module, Keyword.take(options, [:limit, :per]) ++ if(clock, do: [clock: clock], else: []) ++ own}
      {backend, config} = config(kept, service, made)
      %__MODULE__{service: service, backend: backend, config: config, made: made, sleep: sleep, wait: wait(options)}
    end
  end

  defp config(%__MODULE__{made: made} = kept, _service, made), do: {kept.backend, kept.config}

  defp config(%__MODULE__{made: {module, old}} = kept, service, {module, new}) do
    if old[:clock] == new[:clock] and function_exported?(module, :change, 3) do
      {:ok, config} = module.change(service, own_config(kept), new)
      wrap(module, config)
    else
      config(nil, service, {module, new})
    end
  end

  defp config(_kept, service, {module, options}) do
    {:ok, config} = module.init(service, options)
    wrap(module, config)
  end

  defp wrap(module, config),
    do: if(function_exported?(module, :reserve, 4), do: {module, config}, else: {Basic, {module, config}})

  defp own_config(%__MODULE__{backend: Basic, config: {_module, config}}), do: config
  defp own_config(%__MODULE__{config: config}), do: config

  defp backend({module, own}), do: {module, own}
  defp backend(module), do: {module, []}

  defp wait(options), do: Keyword.get_lazy(options, :wait, fn -> min(options[:per], 5_000) end)

  # The pipeline's way in, perhaps after a wait, and back. A wait that is longer than the nanoseconds that are `left` of
  # the call's deadline is refused like one that is longer than `:wait`.
  @doc false
  @spec take(t(), pos_integer(), non_neg_integer() | :infinity) :: {:ok, place()} | rate_limited()
  def take(limiter, cost, left \\ :infinity)
  def take(%__MODULE__{wait: wait} = limiter, cost, :infinity), do: take(limiter, cost, wait, true)
  def take(%__MODULE__{wait: false} = limiter, cost, _left), do: take(limiter, cost, false, true)
  def take(%__MODULE__{wait: wait} = limiter, cost, left), do: take(limiter, cost, min(wait, Unit.whole_ms(left)), true)

  defp take(%__MODULE__{service: service, backend: backend} = limiter, cost, wait, first?) do
    case backend.reserve(service, limiter.config, cost, wait) do
      {:ok, place} ->
        {:ok, place}

      {:wait, ms, place} ->
        pause(limiter, ms, first?)
        {:ok, place}

      {:again, ms} ->
        pause(limiter, ms, first?)
        take(limiter, cost, left(wait, ms), false)

      {:refused, retry_after} ->
        refuse(service, retry_after)
    end
  end

  @doc false
  @spec give_back(t(), pos_integer(), place()) :: :ok
  def give_back(%__MODULE__{service: service, backend: backend, config: config}, cost, place),
    do: backend.give_back(service, config, cost, place)

  # Is nothing of the limit used, so that a new one would do in its place?
  @doc false
  @spec idle?(t()) :: boolean()
  def idle?(%__MODULE__{service: service, backend: backend, config: config, made: {_module, options}}) do
    if function_exported?(backend, :idle?, 3),
      do: backend.idle?(service, config, options),
      else: backend.peek(service, config) == :ok
  end

  defp pause(%__MODULE__{service: service, sleep: sleep}, ms, first?) do
    Telemetry.rate_limit_sleep(service, ms)

    if first? do
      Logger.info(
        "[ExternalService] Rate limit exceeded for service #{inspect(service)}; sleeping for #{ms} milliseconds."
      )
    end

    sleep.(ms)
    :ok
  end

  defp refuse(service, retry_after) do
    Telemetry.rate_limit_rejected(service, retry_after)
    {:error, %RateLimited{context: %{service: service, retry_after: retry_after}}}
  end

  defp left(:infinity, _ms), do: :infinity
  defp left(wait, ms), do: wait - ms
end
