defmodule ExternalService.Endpoints do
  @moduledoc """
  One service that several hosts serve: a breaker for each of them, and a balancer that says which one a call goes to.

      iex> ExternalService.start(:search, endpoints: ["a", {"b", weight: 3}], balancer: :round_robin)
      iex> hosts = for _ <- 1..8, do: ExternalService.call(:search, fn host -> host end)
      iex> Enum.frequencies(hosts)
      %{"a" => 2, "b" => 6}

  A function of one argument that is given to `ExternalService.call/2` gets the endpoint that was chosen, any term.

  An endpoint whose breaker is open is out: the others take its calls until its time has come, when an ordinary call is
  its probe. `:max_ejected` keeps some in, however many breakers are open: half of the hosts at twice their load are better
  than one at ten times. When nobody can be called the call is refused with `ExternalService.NoEndpoint`. A retry goes to an
  endpoint that the call has not tried yet, if there is one.

  `{service, endpoint}` is the service at this endpoint alone: `ExternalService.state({:search, "a"})`,
  `ExternalService.open({:search, "a"}, reason: :update)`, `ExternalService.call({:search, "a"}, fun)`. Its breaker's events
  have that name.

  ## Options

  `:endpoints`, `:balancer`, `:max_ejected`, and `:per` of `:concurrency`, are options of the service. Those of one endpoint:

  #{ExternalService.Options.docs(:endpoint)}
  """

  @behaviour ExternalService.CircuitBreaker

  alias ExternalService.CircuitBreaker.Local
  alias ExternalService.Endpoints.{Endpoint, Seat}
  alias ExternalService.{Concurrency, Native, Options, Service, Unit, Validation, VirtualClock}

  @enforce_keys [:service, :members, :index, :table, :balancer, :own, :clock]
  defstruct @enforce_keys

  @typedoc "An endpoint as the user names it: any term."
  @type endpoint :: term()

  @type t :: %__MODULE__{
          service: term(),
          members: tuple(),
          index: %{endpoint() => non_neg_integer()},
          table: Native.balancer(),
          balancer: term(),
          own: Native.breaker(),
          clock: Native.clock() | nil
        }

  @typedoc "What one call knows: its key, the endpoint it is bound to, and those it has tried."
  @type route :: %{
          key: term(),
          pinned: {:ok, endpoint()} | :error,
          tried: [non_neg_integer()],
          endpoint: {:ok, endpoint()} | :none,
          home: map()
        }

  # More than the core looks at.
  @tried_max 32

  # How long a breaker that does not say is left alone, in milliseconds.
  @unknown 1_000

  @doc false
  @spec route(term(), {:ok, endpoint()} | :error) :: route()
  def route(key, pinned), do: %{key: key, pinned: pinned, tried: [], endpoint: :none, home: %{}}

  # Chooses an endpoint for the next attempt and is let through by its breaker: the service as it is there, and the
  # function with the endpoint as its argument.
  @doc false
  @spec choose(t(), Service.t(), route(), fun()) ::
          {:ok, Service.t(), (() -> term()), permit :: term()} | {:open | :none, term()}
  def choose(%__MODULE__{} = endpoints, service, route, fun) do
    with {:ok, member, place, seat, permit} <- pick(endpoints, route) do
      {:ok, there(service, route, member, place, seat), bound(fun, member, service.concurrency), permit}
    end
  end

  defp pick(endpoints, %{pinned: {:ok, endpoint}}), do: pinned(endpoints, endpoint)

  defp pick(endpoints, %{tried: tried, key: key}),
    do: pick(endpoints, hash(endpoints.balancer, key), Enum.take(tried, @tried_max), [])

  defp there(service, route, member, place, seat) do
    home = Map.take(service, [:breaker, :watch, :concurrency])
    route = %{route | tried: [place | route.tried], endpoint: {:ok, member.endpoint}, home: home}
    watch = if seat, do: member.watch, else: :failures

    %{service | breaker: seat, watch: watch, concurrency: service.concurrency || member.concurrency, route: route}
  end

  # Where the limit is the service's, slots of the endpoint's own are for counting.
  defp bound(fun, %{concurrency: counting, endpoint: endpoint}, limit) when counting != nil and limit != nil,
    do: fn -> Concurrency.counted(counting, fn -> apply_to(fun, endpoint) end) end

  defp bound(fun, %{endpoint: endpoint}, _limit), do: fn -> apply_to(fun, endpoint) end

  defp apply_to(fun, endpoint) when is_function(fun, 1), do: fun.(endpoint)
  defp apply_to(fun, _endpoint), do: fun.()

  # The service as it was before one of its endpoints was chosen.
  @doc false
  @spec home(Service.t()) :: Service.t()
  def home(%{route: %{home: home}} = service), do: Map.merge(service, home)
  def home(service), do: service

  defp pinned(%__MODULE__{index: index, members: members, service: service} = endpoints, endpoint) do
    place =
      Map.get(index, endpoint) ||
        raise ArgumentError,
              "#{inspect(endpoint)} is no endpoint of #{inspect(service)}; there are #{inspect(Map.keys(index))}"

    member = elem(members, place)
    {_in_flight, _latency, _out, draining?} = Native.endpoint_look(member.handle, endpoints.clock)

    case !draining? && Endpoint.admit(member) do
      {:ok, permit} -> {:ok, member, place, Seat.new(member, permit), permit}
      {:open, retry_after} -> {:open, retry_after}
      false -> {:none, :infinity}
    end
  end

  defp pick(endpoints, _hash, _tried, refused) when length(refused) >= @tried_max, do: {:none, soonest(endpoints, true)}

  defp pick(endpoints, hash, tried, refused) do
    case next(endpoints.table, hash, tried, refused) do
      nil -> {:none, soonest(endpoints, refused != [])}
      place -> try_at(endpoints, hash, tried, refused, place)
    end
  end

  # One that was tried is better than one that has just refused.
  defp next(table, hash, tried, refused) do
    case Native.balancer_pick(table, hash, refused ++ tried) do
      nil -> nil
      place -> if place in refused, do: not_in(Native.balancer_pick(table, hash, refused), refused), else: place
    end
  end

  defp not_in(place, refused), do: if(place in refused, do: nil, else: place)

  defp try_at(%__MODULE__{members: members, table: table} = endpoints, hash, tried, refused, place) do
    member = elem(members, place)

    case Endpoint.admit(member) do
      {:ok, permit} ->
        {:ok, member, place, Seat.new(member, permit), permit}

      {:open, retry_after} ->
        if Native.balancer_eject(table, place, Unit.ns(retry_after || @unknown)) or Endpoint.forced_open?(member),
          do: pick(endpoints, hash, tried, [place | refused]),
          else: {:ok, member, place, nil, 0}
    end
  end

  # Some of those that refused would have taken it a moment later.
  defp soonest(%__MODULE__{table: table}, refused?) do
    case Native.balancer_soonest(table) do
      :infinity when refused? -> 0
      ns -> Unit.ms(ns)
    end
  end

  defp hash({:hash, fun}, _key) when is_function(fun, 0), do: hash_of(fun.())
  defp hash({:hash, fun}, key), do: hash_of(fun.(key))
  defp hash(_balancer, _key), do: 0

  # Without a key, any endpoint will do.
  defp hash_of(nil), do: :rand.uniform(0xFFFFFFFF)
  defp hash_of(term), do: Endpoint.id(term)

  @doc false
  @spec list(t()) :: [map()]
  def list(%__MODULE__{members: members, clock: clock}),
    do: for(member <- Tuple.to_list(members), do: Endpoint.describe(member, clock))

  @doc false
  @spec drain(t(), endpoint()) :: :ok | {:error, :not_found}
  def drain(%__MODULE__{} = endpoints, endpoint) do
    case fetch(endpoints, endpoint) do
      {:ok, member} -> Native.endpoint_drain(member.handle, true)
      :error -> {:error, :not_found}
    end
  end

  @doc false
  @spec fetch(t(), endpoint()) :: {:ok, Endpoint.t()} | :error
  def fetch(%__MODULE__{index: index, members: members}, endpoint) do
    with {:ok, place} <- Map.fetch(index, endpoint), do: {:ok, elem(members, place)}
  end

  # Makes the endpoints that a service's options describe. Those that `kept`, the running service, has with the same
  # options stay as they are; a state that a hand has set in `old` goes over in any case.
  @doc false
  @spec install(term(), keyword(), Service.t(), Service.t() | nil, (term(), keyword() | nil -> keyword())) ::
          {module(), t()}
  def install(service, options, kept, old, settings) do
    made_of = %{
      settings: settings,
      limit: &limit(options[:concurrency], &1),
      clock: options[:clock],
      busy?: options[:balancer] == :least_busy
    }

    members =
      for {endpoint, own} <- options[:endpoints] |> listed(service) |> Endpoint.parse!() do
        member = Endpoint.new(member(kept, endpoint), {service, endpoint}, own, made_of)
        Endpoint.succeed(member, member(old, endpoint))
      end

    {__MODULE__, new(service, options, members, old)}
  end

  defp listed(endpoints, _service) when is_list(endpoints), do: endpoints

  defp listed(fun, service) do
    list = fun.()
    Validation.check_given!(:start, endpoints: if(is_list(list), do: list))
    list
  rescue
    error in [ExternalService.ValidationError] ->
      reraise ArgumentError,
              [message: "the `:endpoints` function of #{inspect(service)} gave no list of endpoints: #{error.message}"],
              __STACKTRACE__
  end

  defp limit(nil, _own), do: nil
  defp limit(options, own), do: if(options[:per] == :endpoint, do: Options.merge(options, own || []))

  defp member(%{breaker: {__MODULE__, endpoints}}, endpoint) do
    with {:ok, member} <- fetch(endpoints, endpoint), do: member, else: (:error -> nil)
  end

  defp member(_service, _endpoint), do: nil

  defp new(service, options, members, old) do
    clock = VirtualClock.handle(options[:clock])
    entries = Enum.map(members, &{&1.handle, Endpoint.id(&1.endpoint), &1.weight})

    %__MODULE__{
      service: service,
      members: List.to_tuple(members),
      index: members |> Enum.with_index() |> Map.new(fn {member, place} -> {member.endpoint, place} end),
      table: Native.balancer_new(rule(options[:balancer]), entries, Unit.ppm(options[:max_ejected]), clock),
      balancer: options[:balancer],
      own: own(old, options[:clock]),
      clock: clock
    }
  end

  # A breaker without a rule: for the hand that opens the whole service.
  defp own(%{breaker: {__MODULE__, %{own: own}}}, _clock), do: own

  defp own(_old, clock) do
    {:ok, breaker} = Local.install(nil, [tolerate: :infinity, within: 1] ++ if(clock, do: [clock: clock], else: []))
    breaker
  end

  defp rule({:hash, _fun}), do: :hash
  defp rule(rule), do: rule

  # To those who ask for the service's breaker, the endpoints are one.

  @impl true
  def install(_service, _options), do: raise(ArgumentError, "endpoints are no backend: see the `:endpoints` option")

  @impl true
  def admit(service, %__MODULE__{own: own}), do: Local.admit(service, own)

  @impl true
  def report(_service, _endpoints, _permit, _outcome, _duration), do: :ok

  @impl true
  def ask(service, %__MODULE__{own: own, members: members}) do
    with :ok <- Local.ask(service, own) do
      if Enum.any?(Tuple.to_list(members), &Endpoint.available?/1), do: :ok, else: :blown
    end
  end

  # Whose failure it was is not known.
  @impl true
  def melt(_service, _endpoints), do: :ok

  @impl true
  def reset(service, %__MODULE__{own: own, members: members}) do
    Local.reset(service, own)
    Enum.each(Tuple.to_list(members), &Endpoint.reset/1)
  end

  @impl true
  def remove(service, %__MODULE__{own: own, members: members}) do
    Local.remove(service, own)
    Enum.each(Tuple.to_list(members), &Endpoint.remove/1)
  end

  @impl true
  def open(service, %__MODULE__{own: own}, options), do: Local.open(service, own, options)

  @impl true
  def close(service, %__MODULE__{own: own}), do: Local.close(service, own)

  @impl true
  def bypass(service, %__MODULE__{own: own}), do: Local.bypass(service, own)

  # Open when no endpoint can be called; what they counted, together.
  @impl true
  def look(service, %__MODULE__{own: own, members: members} = endpoints) do
    view = Local.look(service, own)
    views = for member <- Tuple.to_list(members), do: Endpoint.look(member)
    view = %{view | counts: Enum.reduce(views, view.counts, &together(&1[:counts] || %{}, &2))}

    if view.state == :closed and ask(service, endpoints) == :blown,
      do: %{view | state: :open, retry_after: views |> Enum.map(&(&1[:retry_after] || @unknown)) |> Enum.min()},
      else: view
  end

  defp together(counts, sum), do: Map.merge(sum, counts, fn _what, some, more -> some + more end)

  # The new list is in place: those that are not on it have no calls any more but those in flight.
  @impl true
  def succeed(_service, %__MODULE__{} = endpoints, %__MODULE__{members: old}) do
    for member <- Tuple.to_list(old), fetch(endpoints, member.endpoint) == :error, do: Endpoint.remove(member)
    :ok
  end

  # The service at one of its endpoints.
  @doc false
  @spec part(Service.t(), endpoint()) :: Service.t() | nil
  def part(%Service{breaker: {__MODULE__, endpoints}} = service, endpoint) do
    with {:ok, member} <- fetch(endpoints, endpoint) do
      %{
        service
        | name: member.name,
          breaker: member.breaker,
          breaker_options: member.settings,
          watch: member.watch,
          concurrency: member.concurrency || service.concurrency,
          argument: {:ok, endpoint},
          part: nil
      }
    else
      :error -> nil
    end
  end
end
