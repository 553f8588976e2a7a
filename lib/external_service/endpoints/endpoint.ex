defmodule ExternalService.Endpoints.Endpoint do
  # One endpoint of a service: its breaker, its limit, and what the balancer knows of it.
  @moduledoc false

  alias ExternalService.CircuitBreaker.{Installed, Settings}
  alias ExternalService.{Concurrency, Native, Unit, Validation}

  @enforce_keys [:endpoint, :name, :weight, :handle, :breaker, :settings, :watch, :concurrency, :limit, :busy?]
  defstruct @enforce_keys

  @type t :: %__MODULE__{
          endpoint: term(),
          name: {service :: term(), endpoint :: term()},
          weight: pos_integer(),
          handle: Native.endpoint(),
          breaker: {module(), term()} | nil,
          settings: keyword(),
          watch: :failures | :outcomes | :durations,
          concurrency: Concurrency.t() | nil,
          limit: keyword() | nil,
          busy?: boolean()
        }

  # As many as there can be: for counting only.
  @no_limit [limit: 1_000_000, wait: false, queue: 0, reclaim_after: nil]

  @doc "Reads a list of endpoints: each with its options, checked, and no endpoint twice."
  @spec parse!([term()]) :: [{term(), keyword()}]
  def parse!(list) do
    parsed = Enum.map(list, &parse_one/1)
    endpoints = Enum.map(parsed, &elem(&1, 0))

    case endpoints -- Enum.uniq(endpoints) do
      [] -> parsed
      [twice | _] -> Validation.invalid!(:endpoints, list, "#{inspect(twice)} is there twice")
    end
  end

  defp parse_one({endpoint, [{key, _value} | _] = options}) when is_atom(key),
    do: {endpoint, Validation.validate!(:endpoint, options, [:endpoints])}

  defp parse_one(endpoint), do: {endpoint, Validation.validate!(:endpoint, [], [:endpoints])}

  @doc "Makes an endpoint, or keeps `kept` where it is made of the same."
  @spec new(t() | nil, {term(), term()}, keyword(), map()) :: t()
  def new(kept, {_service, endpoint} = name, own, made_of) do
    settings = made_of.settings.(name, own[:circuit_breaker])
    limit = made_of.limit.(own[:concurrency])
    same? = kept != nil and kept.settings == settings and kept.limit == limit and kept.busy? == made_of.busy?

    if same?,
      do: %{kept | weight: own[:weight]},
      else: make(endpoint, name, own[:weight], settings, limit, made_of)
  end

  defp make(endpoint, name, weight, settings, limit, %{clock: clock, busy?: busy?}) do
    handle = Native.endpoint_new()

    %__MODULE__{
      endpoint: endpoint,
      name: name,
      weight: weight,
      handle: handle,
      breaker: Installed.install(name, settings),
      settings: settings,
      watch: if(busy?, do: :durations, else: Installed.watch(settings)),
      concurrency: Concurrency.new(name, limit || if(busy?, do: @no_limit), clock, handle),
      limit: limit,
      busy?: busy?
    }
  end

  @doc "Sees to what becomes of the endpoint that this one takes the place of: a state that a hand has set goes on."
  @spec succeed(t(), t() | nil) :: t()
  def succeed(%__MODULE__{breaker: breaker} = member, %__MODULE__{breaker: breaker}) do
    Native.endpoint_drain(member.handle, false)
    member
  end

  def succeed(member, nil), do: member

  def succeed(%__MODULE__{name: name, breaker: breaker} = member, %__MODULE__{breaker: old}) do
    Installed.replace(name, old, breaker, fn -> :ok end)
    member
  end

  @doc "Returns a number that stays the same for a term, on every node."
  @spec id(term()) :: non_neg_integer()
  def id(term), do: :erlang.phash2(term, 0x100000000) * 0x100000000 + :erlang.phash2([term], 0x100000000)

  @doc "Asks its breaker to be let through."
  @spec admit(t()) :: {:ok, term()} | {:open, term()}
  def admit(%__MODULE__{breaker: nil}), do: {:ok, 0}
  def admit(%__MODULE__{breaker: {backend, config}, name: name}), do: backend.admit(name, config)

  @doc "Returns whether its breaker would let a call through."
  @spec available?(t()) :: boolean()
  def available?(%__MODULE__{breaker: nil}), do: true
  def available?(%__MODULE__{breaker: {backend, config}, name: name}), do: backend.ask(name, config) == :ok

  @doc "Returns whether a hand has opened its breaker."
  @spec forced_open?(t()) :: boolean()
  def forced_open?(member), do: look(member).state == :forced_open

  @doc "Returns what its breaker shows."
  @spec look(t()) :: map()
  def look(%__MODULE__{breaker: nil}), do: %{state: :closed, retry_after: 0}
  def look(%__MODULE__{breaker: {backend, config}, name: name}), do: backend.look(name, config)

  @spec reset(t()) :: :ok
  def reset(%__MODULE__{handle: handle} = member) do
    with {backend, config} <- member.breaker, do: backend.reset(member.name, config)
    Native.endpoint_let_in(handle)
  end

  @spec remove(t()) :: :ok
  def remove(%__MODULE__{breaker: breaker, name: name}), do: Installed.remove(name, breaker)

  @doc "Returns what is known of it, for people."
  @spec describe(t(), Native.clock() | nil) :: map()
  def describe(%__MODULE__{} = member, clock) do
    {in_flight, latency, out_for, draining?} = Native.endpoint_look(member.handle, clock)
    view = look(member)

    %{
      endpoint: member.endpoint,
      weight: member.weight,
      state: view.state,
      retry_after: Map.get(view, :retry_after, 0),
      failures: failures(view[:counts], Settings.rates?(member.settings)),
      calls: if(Settings.rates?(member.settings), do: get_in(view, [:counts, :calls])),
      in_flight: if(member.concurrency, do: in_flight),
      latency: latency && latency / 1_000_000,
      out_for: Unit.ms(out_for),
      draining: draining?
    }
  end

  defp failures(nil, _rates?), do: nil
  defp failures(counts, true), do: counts.failures
  defp failures(counts, false), do: max(counts.window_failures, counts.consecutive)
end
