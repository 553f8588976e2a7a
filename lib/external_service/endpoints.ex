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

  ## Watching

  `ExternalService.endpoints/1` gives a map for each endpoint:

    * `:endpoint`, `:weight`, `:draining` - the term, its weight, and whether it takes no new calls
    * `:state`, `:retry_after` - of its breaker, in milliseconds
    * `:failures`, `:calls` - that its breaker counts; `nil` where it does not
    * `:in_flight`, `:latency` - its calls, and how many milliseconds they take on average; `nil` where nothing needs it
    * `:out_for` - milliseconds until the balancer sends calls there again

  ## Options

  `:endpoints`, `:balancer`, `:max_ejected`, and `:per` of `:concurrency`, are options of the service. Those of one endpoint:

  #{ExternalService.Options.docs(:endpoint)}
  """

  @behaviour ExternalService.CircuitBreaker

  alias ExternalService.CircuitBreaker.Local
  alias ExternalService.Endpoints.{Endpoint, Seat}
  alias ExternalService.Options.Type
  alias ExternalService.{Native, Options, Service, Validation, VirtualClock}

  @enforce_keys [:service, :list, :members, :index, :table, :balancer, :max_ejected, :own, :clock]
  defstruct @enforce_keys

  @typedoc "An endpoint as the user names it: any term."
  @type endpoint :: term()

  @type t :: %__MODULE__{
          service: term(),
          list: [{endpoint(), keyword()}],
          members: tuple(),
          index: %{endpoint() => non_neg_integer()},
          table: Native.balancer(),
          balancer: term(),
          max_ejected: 0..1_000_000,
          own: Native.breaker(),
          clock: Native.clock() | nil
        }

  # In the order in which they were given.
  @doc false
  @spec names(t()) :: [endpoint()]
  def names(%__MODULE__{list: list}), do: for({endpoint, _options} <- list, do: endpoint)

  @doc false
  @spec list(term()) :: [map()] | {:error, :not_found}
  def list(service) do
    with {:ok, %{members: members, clock: clock}} <- of(service),
         do: for(member <- Tuple.to_list(members), do: Endpoint.describe(member, clock))
  end

  @doc false
  @spec drain(term(), endpoint()) :: :ok | {:error, :not_found}
  def drain(service, endpoint) do
    with {:ok, endpoints} <- of(service), {:ok, member} <- fetch(endpoints, endpoint) do
      Endpoint.drain(member, true)
    else
      _none -> {:error, :not_found}
    end
  end

  defp of(service) do
    case Service.started(service) do
      %Service{breaker: {__MODULE__, endpoints}} -> {:ok, endpoints}
      _none -> {:error, :not_found}
    end
  end

  @doc false
  @spec fetch(t(), endpoint()) :: {:ok, Endpoint.t()} | :error
  def fetch(%__MODULE__{index: index, members: members}, endpoint) do
    with {:ok, place} <- Map.fetch(index, endpoint), do: {:ok, elem(members, place)}
  end

  # What the endpoints that a service's options describe are to be made of. Nothing is made or changed yet: what may raise
  # must not find anything changed.
  @doc false
  @spec plan(term(), keyword(), Service.t(), (term(), keyword() | nil, Endpoint.t() | nil -> {keyword(), boolean()})) ::
          [{endpoint(), keyword(), map()}]
  def plan(service, options, kept, settings) do
    made_of = %{settings: settings, limit: &limit(options[:concurrency], &1)}

    for {endpoint, own} <- list(options[:endpoints], kept, service),
        do: {endpoint, own, Endpoint.plan(member(kept, endpoint), {service, endpoint}, own, made_of)}
  end

  # Makes them. Those that `kept`, the running service, has with the same options stay as they are; a state that a hand has
  # set in `old` goes over in any case.
  @doc false
  @spec install(term(), keyword(), Service.t(), Service.t() | nil, [{endpoint(), keyword(), map()}]) :: {module(), t()}
  def install(service, options, kept, old, plans) do
    made_of = %{clock: options[:clock], busy?: options[:balancer] == :least_busy}

    members =
      for {endpoint, _own, plan} <- plans do
        member = Endpoint.new(member(kept, endpoint), {service, endpoint}, plan, made_of)
        Endpoint.succeed(member, member(old, endpoint))
      end

    list = for {endpoint, own, _plan} <- plans, do: {endpoint, own}
    endpoints = new(service, options, {list, members}, old)
    goes_on(endpoints, kept)
    {__MODULE__, endpoints}
  end

  # A list that is given anew is the end of all draining; it goes on where other options change.
  defp goes_on(%__MODULE__{members: members, list: list}, kept) do
    for member <- Tuple.to_list(members) do
      before = member(kept, member.endpoint)
      Endpoint.drain(member, same_list?(list, kept) and before != nil and Endpoint.draining?(before))
    end
  end

  defp same_list?(list, %{breaker: {__MODULE__, %{list: kept}}, options: options}),
    do: options[:endpoints] != nil and list == kept

  defp same_list?(_list, _kept), do: false

  # A function is called when it is given, and not when other options change.
  defp list(given, %{breaker: {__MODULE__, %{list: list}}, options: options}, service) do
    if options[:endpoints] == given, do: list, else: given |> listed(service) |> Endpoint.parse!()
  end

  defp list(given, _kept, service), do: given |> listed(service) |> Endpoint.parse!()

  defp listed(list, _service) when is_list(list), do: list

  defp listed(fun, service) do
    list = fun.()

    unless is_list(list) and Type.valid?(:endpoints, list) do
      raise ArgumentError,
            "the `:endpoints` function of #{inspect(service)} gave no list of 1 to 65536 endpoints, but: #{inspect(list)}"
    end

    list
  end

  # Where the service has no limit, an endpoint may have one; where it has one for all together, none of its own.
  defp limit(nil, nil), do: nil
  defp limit(nil, own), do: Validation.validate!(:concurrency, own, [:endpoints, :concurrency])
  defp limit(options, own), do: if(options[:per] == :endpoint, do: Options.merge(options, own || []))

  defp member(%{breaker: {__MODULE__, endpoints}}, endpoint) do
    with {:ok, member} <- fetch(endpoints, endpoint), do: member, else: (:error -> nil)
  end

  defp member(_service, _endpoint), do: nil

  defp new(service, options, {list, members}, old) do
    clock = VirtualClock.handle(options[:clock])
    max = ejected_ppm(options[:max_ejected])
    entries = Enum.map(members, &{&1.handle, Endpoint.id(&1.endpoint), &1.weight})

    %__MODULE__{
      service: service,
      list: list,
      members: List.to_tuple(members),
      index: members |> Enum.with_index() |> Map.new(fn {member, place} -> {member.endpoint, place} end),
      table: Native.balancer_new(rule(options[:balancer]), entries, max, clock),
      balancer: options[:balancer],
      max_ejected: max,
      own: own(old, options[:clock]),
      clock: clock
    }
  end

  # Rounded up: a third is one of three.
  defp ejected_ppm(share), do: ceil(share * 1_000_000)

  # A breaker without a rule: for the hand that opens the whole service.
  # What a hand did to the service goes on, on the new clock if there is one.
  defp own(%{breaker: {__MODULE__, %{own: own}}, options: options}, clock) do
    if options[:clock] == clock, do: own, else: nil |> own(clock) |> tap(&Local.inherit(nil, &1, own))
  end

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
  def ask(service, %__MODULE__{own: own} = endpoints) do
    with :ok <- Local.ask(service, own), do: if(callable?(endpoints), do: :ok, else: :blown)
  end

  # One that is open takes calls all the same where no more may be out.
  defp callable?(%__MODULE__{clock: clock} = endpoints) do
    still_in = endpoints |> staying() |> Enum.reject(&Endpoint.out?(&1, clock))

    Enum.any?(still_in, &Endpoint.available?/1) or
      Enum.count(still_in, &(not Endpoint.forced_open?(&1))) > max(room(endpoints), 0)
  end

  # How many more may be out; below zero where some have begun to drain since.
  @doc false
  @spec room(t()) :: integer()
  def room(%__MODULE__{clock: clock, max_ejected: max} = endpoints) do
    staying = staying(endpoints)
    div(length(staying) * max, 1_000_000) - Enum.count(staying, &Endpoint.out?(&1, clock))
  end

  defp staying(%__MODULE__{members: members}), do: members |> Tuple.to_list() |> Enum.reject(&Endpoint.draining?/1)

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
      do: %{view | state: :open, retry_after: soonest(endpoints)},
      else: view
  end

  defp soonest(%__MODULE__{members: members}) do
    waits = for member <- Tuple.to_list(members), not Endpoint.draining?(member), do: Endpoint.retry_after(member)
    Enum.min([:infinity | waits])
  end

  defp together(counts, sum), do: Map.merge(sum, counts, fn _what, some, more -> some + more end)

  # The new list is in place: those that are not on it have no calls any more but those in flight, and those with another
  # breaker are asked anew.
  @impl true
  def succeed(_service, %__MODULE__{} = endpoints, %__MODULE__{members: old}) do
    for %{breaker: breaker} = member <- Tuple.to_list(old) do
      case fetch(endpoints, member.endpoint) do
        {:ok, %{breaker: ^breaker}} -> :ok
        {:ok, other} -> Endpoint.let_in(other)
        :error -> Endpoint.remove(member)
      end
    end

    :ok
  end

  # While a hand has the whole service open, nobody comes to an endpoint either.
  defp door(%__MODULE__{own: own, service: service}, member) do
    if Local.ask(service, own) == :ok, do: member.breaker && Seat.new(member), else: {Local, own}
  end

  # The service at one of its endpoints.
  @doc false
  @spec part(Service.t(), endpoint()) :: Service.t() | nil
  def part(%Service{breaker: {__MODULE__, endpoints}} = service, endpoint) do
    with {:ok, member} <- fetch(endpoints, endpoint) do
      %{
        service
        | name: member.name,
          breaker: door(endpoints, member),
          breaker_options: member.settings,
          watch: member.watch,
          concurrency: service.concurrency || member.concurrency,
          argument: {:ok, endpoint},
          part: nil
      }
    else
      :error -> nil
    end
  end
end
