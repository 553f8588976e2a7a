defmodule ExternalService.Endpoints.Endpoint do
  # One endpoint of a service: its breaker, its limit, and what the balancer knows of it.
  @moduledoc false

  alias ExternalService.CircuitBreaker.{Installed, Settings}
  alias ExternalService.{Concurrency, Native, Unit, Validation}

  @enforce_keys [:endpoint, :name, :weight, :handle, :breaker, :settings, :auto?, :watch, :concurrency, :limit, :busy?]
  defstruct @enforce_keys

  @type t :: %__MODULE__{
          endpoint: term(),
          name: {service :: term(), endpoint :: term()},
          weight: pos_integer(),
          handle: Native.endpoint(),
          breaker: {module(), term()} | nil,
          settings: keyword(),
          auto?: boolean(),
          watch: :failures | :outcomes | :durations,
          concurrency: Concurrency.t() | nil,
          limit: keyword() | nil,
          busy?: boolean()
        }

  @unknown 1_000

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

  # Defaults are left out: what an endpoint does not say is the service's to say.
  defp parse_one({endpoint, [{key, _value} | _] = options}) when is_atom(key) do
    Validation.check_given!(:endpoint, options, [:endpoints])
    {endpoint, options}
  end

  defp parse_one(endpoint), do: {endpoint, []}

  @doc "Returns what an endpoint is to be made of, or raises; nothing is made or changed yet."
  @spec plan(t() | nil, {term(), term()}, keyword(), map()) :: map()
  def plan(kept, name, own, made_of) do
    {settings, auto?} = made_of.settings.(name, own[:circuit_breaker], kept)
    %{settings: settings, auto?: auto?, weight: own[:weight] || 1, limit: made_of.limit.(own[:concurrency])}
  end

  @doc "Makes an endpoint, or keeps of `kept` what is made of the same."
  @spec new(t() | nil, {term(), term()}, map(), map()) :: t()
  def new(kept, name, %{settings: settings} = plan, made_of) do
    member = if kept, do: renewed(kept, name, settings), else: make(name, settings)
    limited(%{member | weight: plan.weight, auto?: plan.auto?}, plan.limit, made_of)
  end

  # Where only the breaker is another one, calls in flight are counted on: the limit holds for them.
  defp renewed(%__MODULE__{settings: old} = kept, name, settings) do
    cond do
      Keyword.delete(old, :melt) == Keyword.delete(settings, :melt) -> %{kept | settings: settings}
      old[:clock] == settings[:clock] -> %{kept | settings: settings, breaker: Installed.install(name, settings)}
      true -> make(name, settings)
    end
  end

  defp make({_service, endpoint} = name, settings) do
    %__MODULE__{
      endpoint: endpoint,
      name: name,
      weight: 1,
      handle: Native.endpoint_new(),
      breaker: Installed.install(name, settings),
      settings: settings,
      auto?: false,
      watch: Installed.watch(settings),
      concurrency: nil,
      limit: nil,
      busy?: false
    }
  end

  # Who holds a slot or waits for one does so under the new limit.
  defp limited(%__MODULE__{} = member, limit, %{clock: clock, busy?: busy?}) do
    watch = if busy?, do: :durations, else: Installed.watch(member.settings)
    member = %{member | watch: watch}
    if {limit, busy?} == {member.limit, member.busy?}, do: member, else: limited(member, limit, busy?, clock)
  end

  defp limited(%__MODULE__{concurrency: kept, name: name, handle: handle} = member, limit, busy?, clock) do
    concurrency = Concurrency.reconfigure(kept, name, limit || if(busy?, do: @no_limit), clock, handle)
    %{member | limit: limit, busy?: busy?, concurrency: concurrency}
  end

  @doc "Sees to what becomes of the endpoint that this one takes the place of: a state that a hand has set goes on."
  @spec succeed(t(), t() | nil) :: t()
  def succeed(%__MODULE__{breaker: breaker} = member, %__MODULE__{breaker: breaker}), do: member
  def succeed(member, nil), do: member

  def succeed(%__MODULE__{name: name, breaker: breaker} = member, %__MODULE__{breaker: old}) do
    Installed.replace(name, old, breaker, fn -> :ok end)
    member
  end

  @doc "Lets new calls go there or not."
  @spec drain(t(), boolean()) :: :ok
  def drain(%__MODULE__{handle: handle}, draining?), do: Native.endpoint_drain(handle, draining?)

  @doc "Returns whether it takes no new calls."
  @spec draining?(t()) :: boolean()
  def draining?(%__MODULE__{handle: handle}), do: handle |> Native.endpoint_look(nil) |> elem(3)

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

  @doc "Returns whether the balancer sends no calls there for a while."
  @spec out?(t(), Native.clock() | nil) :: boolean()
  def out?(%__MODULE__{handle: handle}, clock), do: handle |> Native.endpoint_look(clock) |> elem(2) > 0

  @doc "Returns for how many milliseconds its breaker wants to be left alone."
  @spec retry_after(t()) :: non_neg_integer() | :infinity
  def retry_after(member), do: look(member)[:retry_after] || @unknown

  @doc "How long a breaker that does not say is left alone, in milliseconds."
  @spec unknown() :: pos_integer()
  def unknown, do: @unknown

  @doc "Returns what its breaker shows."
  @spec look(t()) :: map()
  def look(%__MODULE__{breaker: nil}), do: %{state: :closed, retry_after: 0}
  def look(%__MODULE__{breaker: {backend, config}, name: name}), do: backend.look(name, config)

  @spec reset(t()) :: :ok
  def reset(%__MODULE__{} = member) do
    with {backend, config} <- member.breaker, do: backend.reset(member.name, config)
    let_in(member)
  end

  @doc "Lets the balancer send calls there again; its breaker may still refuse them."
  @spec let_in(t()) :: :ok
  def let_in(%__MODULE__{handle: handle}), do: Native.endpoint_let_in(handle)

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
